"""What the command line says of errors: long values by their beginning, and what a user can do about a file."""

from __future__ import annotations

import errno
import re

CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.ENAMETOOLONG: "use a shorter one",
}
"""Errors of the operating system that are the user's to correct."""

LONG = re.compile(r"\S{400,}")


def shortened(text: str) -> str:
    """Return a message in which words of 400 characters or more end after 57."""
    return LONG.sub(lambda word: f"{word[0][:57]}... ({len(word[0]):,} characters)", text)
