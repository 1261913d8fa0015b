"""Cut texts into sentences without a model: by a few rules, or at line breaks."""

from __future__ import annotations

import re
from itertools import pairwise

_ABBREVIATIONS = """
al approx cf co corp dr e.g ed eds eq etc fig figs i.e inc jr ltd mr mrs ms mt no nos p pp prof ref refs rev sr st
vol vs jan feb mar apr jun jul aug sep sept oct nov dec
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words behind which a period ends no sentence, in lower case and without the last period."""

_OPENING, _CLOSING = "\"'(\\[\u2018\u201c", "\"')\\]\u2019\u201d"
# A stop with what closes after it, and white space before what a sentence begins with. Each is looked at once, for
# texts without any.
_END = re.compile(rf"(?<![.!?])(?P<stop>[.!?]+[{_CLOSING}]*)(?P<space>\s+)(?=[{_OPENING}]*[^\W_a-z])")
_WIDE_END = re.compile("(?P<stop>[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\uff09]*)\\s*")  # of Chinese and Japanese
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_LONGEST = 1 + max(map(len, ABBREVIATIONS))

Ends = list[tuple[int, int]]
"""Where each sentence ends and the next one begins."""


def cut(text: str, ends: Ends, *, keep_newlines: bool) -> list[str]:
    """Return the sentences between ``ends``; with ``keep_newlines`` white space stays behind each."""
    borders = [(0, 0), *ends, (len(text), len(text))]
    if keep_newlines:
        pieces = [text[begin:following] for (_, begin), (_, following) in pairwise(borders)]
    else:
        pieces = [text[begin:end].strip() for (_, begin), (end, _) in pairwise(borders)]
    return [piece for piece in pieces if piece.strip()]


def ends_of_lines(text: str) -> Ends:
    """Return every line break; empty lines are none."""
    return [found.span() for found in re.finditer(r"[\r\n]+", text)]


def ends_by_rules(text: str) -> Ends:
    """Return where sentences end: at a stop before a capital letter or a digit, and at an empty line.

    A single period ends none behind an abbreviation or one capital letter. Chinese and Japanese stops always do.
    """
    found = {each.start(): each.end() for each in _EMPTY_LINE.finditer(text)}
    for each in _END.finditer(text):
        before = text[max(0, each.start() - _LONGEST) : each.start()]
        word = re.split(rf"[\s{_OPENING}]", before)[-1]
        is_initial = len(word) == 1 and word.isupper()
        if each["stop"] != "." or not (is_initial or word.lower() in ABBREVIATIONS):
            found.setdefault(each.start("space"), each.end())
    for each in _WIDE_END.finditer(text):
        found.setdefault(each.end("stop"), each.end())
    return sorted(found.items())
