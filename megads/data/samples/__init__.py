"""Samples of a run: which tokens make each, and in which order they come."""
