"""Worker processes of preprocessing. Never imports torch."""
