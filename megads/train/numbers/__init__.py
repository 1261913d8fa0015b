"""Watches the numbers of a run: copies that must be equal, updates that round to zero, the first NaN or Inf."""
