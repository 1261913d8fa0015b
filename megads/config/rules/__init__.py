"""Rules that settings keep, and what would work instead. Never imports torch."""
