"""The commit that this copy of megads is: stamped into a wheel when it is built, else what git says of the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

STAMP = "commit.txt"
"""Next to this file in a wheel and in an sdist; a checkout has none."""


def commit(root: Path) -> str:
    """Return the commit of a checkout, with ``+`` where files were changed; ``?`` where git does not say."""
    if not (root / ".git").exists():
        return "?"  # not the commit of a repository around it, such as the one that an environment is in
    try:
        words = ["git", "-C", str(root), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    return done.stdout.strip() or "?"


def own_commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit of this copy, ``?`` where it is unknown.

    Args:
        folder: this module's.
    """
    try:
        return (folder / STAMP).read_text(encoding="ascii").strip() or "?"
    except (OSError, ValueError):
        return commit(folder.parents[1])
