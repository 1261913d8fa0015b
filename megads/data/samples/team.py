"""The ranks that make the indices of a run together; this room knows no process groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _alone() -> None:
    """One rank waits for nobody."""


@dataclass(frozen=True)
class Team:
    """Who builds which files, and how they wait for one another."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # 0: first on its host, builds what its own file system lacks
    barrier: Callable[[], None] = _alone  # returns when every rank of the team has called it
