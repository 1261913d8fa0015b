"""Cut the texts of tasks out of a document. Rules as in Megatron-LM's filter_ngrams.py."""

from __future__ import annotations

from dataclasses import dataclass

from megads.data.corpus.contamination.ngrams import Match, Matcher

_ENDS = ".!?"  # of a sentence


@dataclass(frozen=True)
class Limits:
    """What is cut, and what is kept."""

    side: int = 200  # characters removed on each side of an n-gram, at least: up to the end of a sentence
    piece: int = 200  # characters; a shorter rest is dropped
    splits: int = 10  # pieces of a document; one with more is dropped


def counted(text: str, matcher: Matcher) -> list[str]:
    """Return the n-grams that a text holds, each once, in the order in which they are found."""
    found: dict[str, None] = {}
    while match := matcher.first(text):
        found[match.ngram] = None
        text = text[match.start + len(match.ngram) + 1 :]
    return list(found)


def pieces_of(text: str, matcher: Matcher, limits: Limits) -> list[str]:
    """Return what is left of a text; a text without n-grams is left as it is."""
    pieces = []
    while match := matcher.first(text):
        before, text = _split(text, match, limits.side)
        if len(before) > limits.piece:
            pieces.append(before)
        if len(text) <= limits.piece:
            return pieces
    return [*pieces, text]


def _split(text: str, match: Match, side: int) -> tuple[str, str]:
    """Return the sentences before and after a match."""
    # Lower case may be longer than the text.
    at = min(match.start - side, len(text) - 1)
    while at > 0 and text[at] not in _ENDS:
        at -= 1
    before = text[: at + 1] if at > 0 else ""
    at = match.start + len(match.ngram) + side
    while at < len(text) and text[at] not in _ENDS:
        at += 1
    return before, text[at + 1 :]
