"""Vectors to their nearest ones: exact in numpy, or an index of faiss."""
