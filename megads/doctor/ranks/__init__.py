"""What every rank of a check does."""
