"""Pretrain GPT and Llama models on any supercomputer and any GPU."""

__version__ = "0.1.0"
