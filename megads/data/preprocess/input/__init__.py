"""Input of preprocessing: files, lines, sentences. Never imports torch."""
