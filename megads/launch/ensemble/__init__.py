"""Several runs in one allocation: which, where, and what happens when one of them fails."""
