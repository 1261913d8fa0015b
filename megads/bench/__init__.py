"""``megads bench``: what a device computes, how fast, and whether it is right, in a few minutes."""
