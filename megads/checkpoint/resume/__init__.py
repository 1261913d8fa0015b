"""Which checkpoint a run starts from, and whether it fits. Never imports torch."""
