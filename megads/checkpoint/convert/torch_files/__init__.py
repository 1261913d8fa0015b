"""Files of ``torch.save``: read without running anything, written a tensor at a time."""
