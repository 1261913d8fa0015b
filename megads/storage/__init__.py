"""Files as they are found: what kind they are, how much of them is read, and whether they are what was written."""
