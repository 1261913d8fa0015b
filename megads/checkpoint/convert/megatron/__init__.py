"""Checkpoints of Megatron-LM and Megatron-DeepSpeed, in and out."""
