"""Sample indices on disk: built once, by many processes, and found again. Never imports torch."""
