"""Samples of Retro: tokens, and the neighbours of their chunks. Never imports torch."""
