"""The frame of the corpus tools: JSON lines in, a step on each document, JSON lines out."""
