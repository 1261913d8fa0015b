"""Training data in stages, from ``DATA_STAGES``: each with its length, mixture, sequence length and learning rate."""
