"""Texts to vectors: BERT of Hugging Face, BERT of megads, and hashed words."""
