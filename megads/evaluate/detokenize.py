"""Texts of corpora that were split into words, joined again as Megatron-LM does for its published numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

Rule = tuple[str, str]
"""What is replaced, and by what; a pattern where it begins with ``re:``."""

PENN: tuple[Rule, ...] = (
    (" '", "'"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" n't", "n't"),
    (" N ", "1 "),
    ("$ 1", "$1"),
    ("# 1", "#1"),
)
WIKITEXT: tuple[Rule, ...] = (
    ("s '", "s'"),
    # Between slashes, which no text has: kept, since published numbers are computed so.
    (r"re:/' [0-9]/", r"/'[0-9]/"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
    (r"re:\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"re:\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"re:{\s*([^}]*?)\s*}", r"{\1}"),
    (r"re:\"\s*([^\"]*?)\s*\"", r'"\1"'),
    (r"re:'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
OF_PATH: tuple[tuple[str, tuple[Rule, ...]], ...] = (("ptb", PENN), ("wiki", WIKITEXT), ("lambada", ()))
"""Part of a path -> rules of its text; the first that fits."""


def detokenizer_of(path: Path) -> Callable[[str], str]:
    """Return what joins the words of the text in ``path``, by the file's path; of other files nothing changes."""
    rules = next((rules for name, rules in OF_PATH if name in str(path)), ())
    return lambda text: _applied(rules, text)


def _applied(rules: tuple[Rule, ...], text: str) -> str:
    for old, new in rules:
        text = re.sub(old[3:], new, text) if old.startswith("re:") else text.replace(old, new)
    return text
