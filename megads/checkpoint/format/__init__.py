"""What a checkpoint is on disk: manifest, files, folders. Never imports torch."""
