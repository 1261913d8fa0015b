"""JSON lines to token files."""
