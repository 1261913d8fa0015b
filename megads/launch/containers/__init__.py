"""Ranks in a container: which runtime starts it, with which options, and what of the host it sees."""
