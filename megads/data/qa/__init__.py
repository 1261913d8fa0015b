"""Questions with answers and contexts, and how a model is asked them."""
