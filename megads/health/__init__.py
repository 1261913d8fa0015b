"""What ``megads doctor`` does on every rank."""
