"""Hugging Face folders: weights, settings and tokenizer, out and in."""
