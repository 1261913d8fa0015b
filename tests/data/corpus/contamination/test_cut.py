"""What is cut out around an n-gram."""

from __future__ import annotations

import random
import re

import pytest

from megads.data.corpus.contamination.cut import Limits, counted, pieces_of
from megads.data.corpus.contamination.ngrams import Matcher
from tests.data.corpus.made import sentence

TASK = " ".join(f"q{number}" for number in range(13))


def filler(draw: random.Random, size: int) -> str:
    """Return sentences of at least ``size`` characters, which end with a stop."""
    found = ""
    while len(found) < size:
        found += " " * bool(found) + sentence(draw, draw.randint(6, 12))
    return found


def by_hand(text: str, task: str, side: int, least: int) -> list[str]:
    """Return what is left of a text: by regular expressions over the text alone."""
    kept = []
    while found := re.search(r"\W+".join(task.split()), text, re.IGNORECASE):
        ends = [each.end() for each in re.finditer(r"[.!?]", text) if 1 < each.end() <= found.start() - side + 1]
        before = text[: ends[-1]] if ends else ""
        start = found.start() + len(task) + side
        after = re.search(r"[.!?]", text[start:])
        kept += [before] * (len(before) > least)
        text = text[start + after.end() :] if after else ""
        if len(text) <= least:
            return kept
    return [*kept, text]


@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_those_cut_by_hand(seed):
    draw = random.Random(seed)
    matcher = Matcher([TASK])
    counts = set()
    for _ in range(40):
        side, least = draw.choice([0, 20, 200]), draw.choice([0, 100, 200])
        parts = [filler(draw, draw.choice([1, 150, 400, 900])) for _ in range(draw.randint(1, 5))]
        joint = draw.choice([f" So {TASK.upper()} it is. ", f" {TASK.replace(' ', ', ')}? "])
        text = joint.join(parts)
        found = pieces_of(text, matcher, Limits(side=side, piece=least))
        assert found == by_hand(text, TASK, side, least)
        counts.add(len(found))
    assert counts >= {0, 1, 2, 3}


def test_a_clean_text_stays_as_it_is_however_short():
    matcher = Matcher([TASK])
    for text in ("", "Short.", "one two " * 50):
        assert pieces_of(text, matcher, Limits()) == [text]


def test_lower_case_that_is_longer_than_the_text_is_no_error():
    text = "\u0130" * 600 + " " + TASK
    assert pieces_of(text, Matcher([TASK]), Limits()) == []


def test_ngrams_are_counted_once_per_document():
    other = " ".join(f"r{number}" for number in range(8))
    rest = "and so on and on and on and on and on and on and on and on"
    assert counted(f"{rest} {TASK} {rest} {TASK} {rest} {other} {rest}", Matcher([TASK, other])) == [TASK, other]
