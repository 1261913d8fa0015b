"""Output of preprocessing: unfinished, locked, published. Never imports torch."""
