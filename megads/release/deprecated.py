"""Names that will be removed: what to use, and which version removes them. ``docs/releases.md`` has the rule.

A row is all that a rename needs: the old name is read as the new one, with one line that says so. The version in
``removed`` cannot be released before the row, and what it keeps alive, is gone (tests/release/test_deprecated.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["variable", "key", "option"]
"""Of the environment; of ``--set`` and files; of the command line."""

KEPT_FOR = 2
"""Minor versions from the one that deprecates a name to the one that may remove it."""


@dataclass(frozen=True)
class Deprecated:
    """A name that still works.

    Attributes:
        kind: where it is used.
        name: as users write it.
        since: ``MAJOR.MINOR`` that deprecates it.
        removed: ``MAJOR.MINOR`` that no longer knows it.
        use: the name that replaces it, which means the same; empty: none does.
        why: without ``use``, what to do instead.
    """

    kind: Kind
    name: str
    since: str
    removed: str
    use: str = ""
    why: str = ""

    def note(self, where: str = "") -> str:
        """Return the line that a user of the name sees, which begins with ``where``."""
        what = f"use {self.use}" if self.use else self.why
        shown = f"{where}: " if where else ""
        return f"{shown}{self.name} is deprecated and will be removed in megads {self.removed}: {what}"


_NO_GENERATOR = "it has no effect, since no generator has a state to load or save; remove it"

TABLE: tuple[Deprecated, ...] = (
    *(
        Deprecated("variable", name, "0.1", "0.3", why=_NO_GENERATOR)
        for name in ("LOAD_RNG", "SAVE_RNG", "NO_LOAD_RNG", "NO_SAVE_RNG")
    ),
    *(
        Deprecated("key", name, "0.1", "0.3", why=_NO_GENERATOR)
        for name in ("checkpoint.load_rng", "checkpoint.save_rng")
    ),
)


@functools.cache
def deprecated(kind: Kind) -> Mapping[str, Deprecated]:
    """Return the rows of one kind by name."""
    return {each.name: each for each in TABLE if each.kind == kind}


def numbers(version: str) -> tuple[int, int]:
    """Return major and minor of ``MAJOR.MINOR[.PATCH]``, to compare versions."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def overdue(version: str) -> list[str]:
    """Return the names that ``version`` must no longer know."""
    return [each.name for each in TABLE if numbers(version) >= numbers(each.removed)]
