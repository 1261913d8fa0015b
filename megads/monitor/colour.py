"""Colours for lines on a terminal: never in a file or a pipe, never where NO_COLOR is set."""

from __future__ import annotations

import os
import re
from typing import IO

BOLD, DIM, RED, YELLOW, CYAN, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"
LABEL = re.compile(r"^([a-zA-Z][\w .-]{0,7}) +(?=\S)")  # of a banner's or a summary's line, eight letters wide
STEP = re.compile(r"^(step +\d+/\d+)( \| loss +)(\S+)")
SKIPPED = re.compile(r"\| (SKIPPED.*)$")


def may_colour(stream: IO[str]) -> bool:
    """Return whether ``stream`` is a terminal that shows colours, and the user has not said no (https://no-color.org)."""
    try:
        is_terminal = stream.isatty()
    except ValueError:  # closed
        return False
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def coloured(text: str, *, level: str = "info") -> str:
    """Return the lines of ``text`` with control codes around what matters; without them the text is the same.

    Args:
        text: lines of a banner, a step or a summary.
        level: ``warning`` or ``error`` colours all of it.
    """
    if level in ("warning", "error"):
        return f"{YELLOW if level == 'warning' else RED}{text}{PLAIN}"
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    if line.startswith("megads: "):
        return f"{YELLOW}{line}{PLAIN}"
    if line.startswith("$ "):
        return f"{DIM}{line}{PLAIN}"
    if STEP.match(line):
        line = STEP.sub(rf"{CYAN}\1{PLAIN}\2{BOLD}\3{PLAIN}", line)
        return SKIPPED.sub(rf"| {YELLOW}\1{PLAIN}", line)
    match = LABEL.match(line)
    if match and match.end() == 9:  # the label's column and a blank
        return f"{CYAN}{line[:9].rstrip()}{PLAIN}{line[len(line[:9].rstrip()) :]}"
    return line
