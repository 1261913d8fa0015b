"""Texts drawn for the tests of the corpus tools."""

from __future__ import annotations

import random

WORDS = [first + second + third for first in "bdfgklmnprst" for second in "aeiou" for third in ("n", "r", "st", "")]


def sentence(draw: random.Random, words: int) -> str:
    """Return a sentence of ``words`` drawn words."""
    text = " ".join(draw.choice(WORDS) for _ in range(words))
    return text[0].upper() + text[1:] + "."


def text(draw: random.Random, sentences: int) -> str:
    """Return a text of sentences of 6 to 14 words."""
    return " ".join(sentence(draw, draw.randint(6, 14)) for _ in range(sentences))


def edited(draw: random.Random, original: str, share: float) -> str:
    """Return a text of which ``share`` of the words are other ones."""
    words = original.split(" ")
    for place in draw.sample(range(len(words)), round(share * len(words))):
        words[place] = draw.choice(WORDS) + draw.choice(WORDS)
    return " ".join(words)
