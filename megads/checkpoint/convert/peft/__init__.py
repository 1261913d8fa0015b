"""Adapters (LoRA) in the format of the package peft, in and out. No torch."""
