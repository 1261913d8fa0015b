"""Where a run branched off another one, as ``megads branch`` noted it, and runs as a tree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.config.run_files import BRANCH
from megads.storage.reading import SMALL, read_json


@dataclass(frozen=True)
class BranchPoint:
    """The run and the checkpoint that a branch begins with."""

    of: str  # run folder, absolute
    iteration: int
    consumed_samples: int
    consumed_tokens: int
    checkpoint: str  # absolute; may be gone: the branch has its files
    made: str = ""  # date and time

    @property
    def name(self) -> str:
        """Name of the run that it branched off."""
        return Path(self.of).name


def read_branch(folder: Path) -> BranchPoint | None:
    """Return where the run in ``folder`` branched off, None where it did not or the file cannot be read."""
    try:
        found = read_json(folder / BRANCH, SMALL)
        step, samples, tokens = (int(found[key]) for key in ("iteration", "consumed_samples", "consumed_tokens"))
        of, checkpoint, made = (str(found.get(key, "")) for key in ("of", "checkpoint", "made"))
        return BranchPoint(of, step, samples, tokens, checkpoint, made) if of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def as_tree(paths: Sequence[str], points: Mapping[str, tuple[str, int]]) -> list[tuple[str, int]]:
    """Return runs with their depth: every branch behind the run that it branched off, else in the order given.

    Args:
        paths: run folders.
        points: of those that are branches, by path: the run folder they are of, and the iteration.
    """
    real = {os.path.realpath(path): path for path in paths}
    parents = {path: real.get(os.path.realpath(of)) for path, (of, _) in points.items()}
    children: dict[str | None, list[str]] = {}
    for path in paths:
        children.setdefault(parents.get(path), []).append(path)
    found: list[tuple[str, int]] = []
    left = [(path, 0) for path in reversed(children.get(None, []))]
    while left:
        path, depth = left.pop()
        found.append((path, depth))
        under = sorted(children.get(path, []), key=lambda each: points[each][1])
        left += [(each, depth + 1) for each in reversed(under)]
    seen = {path for path, _ in found}
    return found + [(path, 0) for path in paths if path not in seen]  # files that name each other
