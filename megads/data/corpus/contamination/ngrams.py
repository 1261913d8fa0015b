"""N-grams of task texts, and the first place of a text that holds one. Rules as in Megatron-LM's filter_ngrams.py."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

MOST, LEAST = 13, 8
"""Words of the longest and of the shortest n-gram."""

_WORD = re.compile(r"\w+")
_PREFIX = 3  # words by which most places are ruled out at once


def words_of(text: str) -> tuple[list[str], list[int]]:
    """Return the words of a text in lower case, and where each begins in the text in lower case."""
    found = list(_WORD.finditer(text.lower()))
    return [each.group() for each in found], [each.start() for each in found]


def ngrams_of(text: str, most: int = MOST, least: int = LEAST) -> list[str]:
    """Return the n-grams of a task's text: all of ``most`` words, or the whole of a text that is shorter.

    A text of fewer than ``least`` words has none.
    """
    words, _ = words_of(text)
    if len(words) < least:
        return []
    return [" ".join(words[at : at + most]) for at in range(max(1, len(words) - most + 1))]


class Match(NamedTuple):
    """An n-gram in a text."""

    ngram: str
    start: int  # character of the text in lower case


class Matcher:
    """Finds n-grams of a dictionary in texts."""

    def __init__(self, ngrams: Collection[str], most: int = MOST):
        self._ngrams, self._most = ngrams, most
        split = [each.split(" ") for each in ngrams]
        self._lengths = sorted({len(each) for each in split})
        self._prefix = min([_PREFIX, most, *self._lengths])
        self._firsts = {each[0] for each in split}
        self._prefixes = {" ".join(each[: self._prefix]) for each in split}

    def first(self, text: str) -> Match | None:
        """Return the match that Megatron-LM finds first.

        At each place the longest n-gram is tried, then the shorter ones; within the last ``most`` words
        the shorter ones are tried everywhere, length by length. A text of fewer words is not looked at.
        """
        words, positions = words_of(text)
        last = len(words) - self._most
        for at in self._places(words, 0, last + 1):
            for length in (self._most, *self._lengths):
                if (ngram := " ".join(words[at : at + length])) in self._ngrams:
                    return Match(ngram, positions[at])
        if last <= 0:
            return None
        places = self._places(words, last, len(words))
        for length in self._lengths:
            for at in places if length != self._most else ():
                if at + length <= len(words) and (ngram := " ".join(words[at : at + length])) in self._ngrams:
                    return Match(ngram, positions[at])
        return None

    def _places(self, words: list[str], start: int, stop: int) -> list[int]:
        """Return the places from ``start`` to ``stop`` where an n-gram may begin."""
        firsts, prefixes, size = self._firsts, self._prefixes, self._prefix
        return [at for at in range(start, stop) if words[at] in firsts and " ".join(words[at : at + size]) in prefixes]
