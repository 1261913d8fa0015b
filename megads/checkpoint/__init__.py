"""Checkpoints: what is on disk and how it comes back."""
