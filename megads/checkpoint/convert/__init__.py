"""Checkpoints for another layout or another program."""
