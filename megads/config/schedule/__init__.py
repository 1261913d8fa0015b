"""Learning rate, weight decay and batch as functions of the samples seen. Never imports torch."""
