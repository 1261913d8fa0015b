"""Who keeps the rows of ``metrics.jsonl`` besides that file."""
