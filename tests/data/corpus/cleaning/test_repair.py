"""The fast repair gives what ftfy gives, character for character."""

from __future__ import annotations

import re
import sys
import unicodedata
import zlib

import ftfy
import pytest
from ftfy.badness import BADNESS_RE
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megads.data.corpus.cleaning.repair import PATTERN_CRC, SAFE, Repair

if sys.version_info >= (3, 11):
    from re import _constants as kind  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_constants as kind
    import sre_parse as _parser

REPAIR = Repair()
PIECES = [
    *(
        "plain text",
        "It\u2019s \u201cfine\u201d \u2014 really\u2026",
        "caf\u00e9",
        "cafe\u0301",
        "sch\u00c3\u00b6n",
        "\u00e2\u20ac\u2122",
    ),
    *(
        "&amp;",
        "&lt;b&gt;",
        "AT&T;",
        "&eacute;",
        "&#x2019;",
        "<br>",
        "\r\n",
        "\r",
        "\n",
        "\n\n",
        "\u2028",
        "\x85",
        "\x1b[31m",
    ),
    *(
        "\ufb01",
        "\uff21\uff22",
        "\u3000",
        "\x00",
        "\x07",
        "\t",
        "\x0c",
        "\x7f",
        "\ufeff",
        "\u200b",
        "\ud83d",
        "\udca9",
        "\ufffd",
    ),
    *(
        "\u00c3 ",
        "\u00c2 ",
        "voil\u00c3 le travail",
        "\u0431\u044b",
        "\u4e16\u754c",
        "\uac00",
        "\u1100\u1161",
        "\u212b",
        "\U0001f642",
    ),
    *(
        " ",
        "a",
        "\u2018",
        "\u02bc",
        "\u00a0",
        "\u00b7",
        "\u00e9\u00a9",
        "l\u00f3pez",
        "\u201a",
        "\u00ef\u00bb\u00bf",
        "&",
        ";",
        "x" * 50,
    ),
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=12).map("".join))
@example("<\n&amp;")
@example("&amp;\n<\n&amp;")
@example("a\n\u00c3 la")
@example("\u201c\u2019")
@example("\u2018\u0301")
def test_equals_ftfy(text):
    assert REPAIR(text) == ftfy.fix_text(text)


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(max_codepoint=0x24F), max_size=12))
def test_equals_ftfy_on_western_letters(text):
    assert REPAIR(text) == ftfy.fix_text(text)


def test_every_character_alone_and_between_letters():
    starts = [
        *range(0, 0x600, 64),
        *range(0x2000, 0x2800, 64),
        *range(0x3000, 0x11000, 1472),
        *range(0xF900, 0x10000, 64),
    ]
    for start in starts:
        codes = range(start, start + 64)
        for text in ("\n".join(map(chr, codes)), "\n".join(f"a{chr(code)}b" for code in codes if code != 10)):
            assert REPAIR(text) == ftfy.fix_text(text), hex(start)


@pytest.mark.parametrize(
    "line", ["x" * 1_000_005, "\u00c3" + "x" * 999_998 + "\u00c3 \u00c3 x", "&" + "x" * 999_998 + "&amp;"]
)
def test_lines_beyond_what_is_repaired_at_once(line):
    assert REPAIR(line) == ftfy.fix_text(line)


def can_match(tree, letters: list[str]) -> bool:
    """Return whether a text of ``letters`` alone could match each part of some branch: more than could match."""

    def one(content, letter: str) -> bool:
        found = any(
            (what is kind.LITERAL and value == ord(letter))
            or (what is kind.RANGE and value[0] <= ord(letter) <= value[1])
            or (what is kind.CATEGORY and letter.isspace())
            for what, value in content
        )
        return found != (content[0][0] is kind.NEGATE)

    for what, value in tree:
        if what is kind.BRANCH:
            possible = any(can_match(branch, letters) for branch in value[1])
        elif what is kind.MAX_REPEAT:
            possible = value[0] == 0 or can_match(value[2], letters)
        elif what is kind.IN:
            assert all(each is kind.CATEGORY_SPACE for name, each in value if name is kind.CATEGORY)
            possible = any(one(value, letter) for letter in letters)
        elif what is kind.LITERAL:
            possible = chr(value) in letters
        else:
            assert what is kind.AT, what
            possible = True
        if not possible:
            return False
    return True


def test_safe_characters_never_look_like_damage():
    """Derived from the pattern of ftfy's heuristic: no branch of it can match ASCII and safe characters."""
    assert zlib.crc32(BADNESS_RE.pattern.encode()) == PATTERN_CRC, "another ftfy: derive SAFE again"
    safe = re.compile(f"[{SAFE}]")
    assert not re.search("[\u3001-\ud7ff\U00010000-\U0010ffff]", BADNESS_RE.pattern)  # so a few of these will do
    codes = [*range(0x3000), *range(0x3000, 0x20000, 333)]
    letters = [chr(code) for code in codes if code < 128 or safe.match(chr(code))]
    tree = _parser.parse(BADNESS_RE.pattern, re.VERBOSE)
    assert not can_match(tree, letters)
    assert can_match(tree, [*letters, "\u00e9"])
    assert all(unicodedata.is_normalized("NFC", letter) for letter in letters)


def test_another_heuristic_is_asked_about_everything(monkeypatch):
    monkeypatch.setattr("megads.data.corpus.cleaning.repair.PATTERN_CRC", 0)
    repair = Repair()
    for text in ("It\u2019s fine", "\u00e2\u20ac\u2122", "plain", "\u4e16\u754c"):
        assert repair(text) == ftfy.fix_text(text)
