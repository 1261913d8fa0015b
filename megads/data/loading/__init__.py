"""Micro-batches of a rank, read in the background."""
