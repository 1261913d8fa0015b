"""What the launcher checks before it starts the ranks of a check. Never imports torch."""
