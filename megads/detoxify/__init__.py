"""A model's own texts, scored, filtered and trained on: SGEAT (arXiv 2202.04173)."""
