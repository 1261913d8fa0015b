"""Ranks while they run: signals, restarts, how each ended. Never imports torch."""
