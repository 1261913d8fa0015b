"""The page of HTML that ``megads plot`` writes. Never imports torch."""
