"""Hugging Face folders: weights, settings and tokenizer, in and out."""
