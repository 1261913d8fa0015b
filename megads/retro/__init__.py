"""The database of Retro, its index, and the neighbours of samples."""
