"""Token files: the formats of this family, written, read, joined and checked."""
