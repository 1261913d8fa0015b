"""DeepSpeed's dictionary and a user's own JSON of it. Never imports torch."""
