"""The Python environment on every host's own disk, sent there over a tree."""
