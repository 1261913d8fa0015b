"""Training data in stages: which files each is drawn from, and one row of samples of all of them."""
