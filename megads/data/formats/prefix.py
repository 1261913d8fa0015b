"""The name that a pair of token files shares, ``<prefix>.bin`` and ``<prefix>.idx``. No numpy."""

from __future__ import annotations

from pathlib import Path


def strip_suffix(prefix: str) -> str:
    """Return ``prefix`` without a ``.bin`` or ``.idx`` at its end."""
    for suffix in (".bin", ".idx"):
        if prefix.endswith(suffix) and Path(prefix).name != suffix:
            return prefix[: -len(suffix)]
    return prefix
