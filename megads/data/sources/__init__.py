"""Which data a run reads: lists, the demo corpus, shares. Never imports torch."""
