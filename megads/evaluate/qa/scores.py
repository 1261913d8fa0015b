"""Token F1 and exact match of an answer, as ParlAI and SQuAD compute them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
# ParlAI's list of punctuation is that of Python.
NO_ANSWER = "no_passages_used"
"""What some files have for a question that has no answer: it is not scored by F1."""


def words_of(text: str) -> list[str]:
    """Return the words of a text for F1: punctuation separates words, and articles are none."""
    return _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split()


def normalised(text: str) -> str:
    """Return a text for exact match: punctuation is dropped, then articles."""
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", text.lower())).split())


@dataclass(frozen=True)
class Overlap:
    """What a prediction and an answer have in common, 0 to 1."""

    precision: float = 0.0
    recall: float = 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 where nothing is in common."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def overlap(prediction: str, answer: str) -> Overlap | None:
    """Return which share of the words is in both texts; None: there is no answer, and nothing to score.

    A word that is in a text twice counts twice if it is in the other one twice.
    """
    if not answer.strip() or answer.strip() == NO_ANSWER:
        return None
    guess, gold = words_of(prediction), words_of(answer)
    common = (Counter(guess) & Counter(gold)).total()
    return Overlap(common / len(guess), common / len(gold)) if common else Overlap()


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether a prediction is one of the answers."""
    return normalised(prediction) in map(normalised, answers)
