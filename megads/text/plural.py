"""Small pieces of English that messages share. No imports of the package."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: float, noun: str, spec: str = "") -> str:
    """Return ``1 rank`` or ``2 ranks``.

    Args:
        count: how many.
        noun: one of them; its plural ends in -s, or is that of a word in ``OTHERS``.
        spec: how the number is formatted, as in ``f"{count:,}"``.
    """
    return f"{count:{spec}} {noun_for(count, noun)}"


def noun_for(count: float, noun: str) -> str:
    """Return ``rank`` or ``ranks``; arguments as of :func:`plural`."""
    return noun if count == 1 else OTHERS.get(noun, noun + "s")


def listed(words: Sequence[str], last: str = "and") -> str:
    """Return ``a, b and c`` of one word or more."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


OTHERS = {
    "copy": "copies",
    "corpus": "corpora",
    "index": "indices",
    "micro-batch": "micro-batches",
    "other copy": "other copies",
    "pair of hosts": "pairs of hosts",
    "process": "processes",
    "query": "queries",
}
"""Nouns whose plural has another ending."""
