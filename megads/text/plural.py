"""Small pieces of English that messages share. No imports of the package."""

from __future__ import annotations


def plural(count: float, noun: str, spec: str = "") -> str:
    """Return ``1 rank`` or ``2 ranks``.

    Args:
        count: how many.
        noun: one of them; its plural ends in -s, or is that of a word in ``OTHERS``.
        spec: how the number is formatted, as in ``f"{count:,}"``.
    """
    return f"{count:{spec}} {noun if count == 1 else OTHERS.get(noun, noun + 's')}"


OTHERS = {"corpus": "corpora", "process": "processes", "index": "indices", "copy": "copies", "query": "queries"}
"""Nouns whose plural has another ending."""
