"""Texts of tasks, found in a corpus and cut out of it."""
