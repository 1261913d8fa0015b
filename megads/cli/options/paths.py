"""Paths that users give."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(text: str | Path) -> Path:
    """Return a path as it is from the root: with a name, though it be ``.``, and with the home for ``~``."""
    return Path(os.path.abspath(os.path.expanduser(text)))
