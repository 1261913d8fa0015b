"""Checkpoints of adapters (LoRA): the base that they name, and the two together."""
