"""Samples of BERT and T5. Never imports torch."""
