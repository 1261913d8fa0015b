"""Near-duplicates: fingerprints, pairs, groups."""
