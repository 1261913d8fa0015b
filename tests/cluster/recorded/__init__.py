"""The variables that real launchers set, as files, and the ranks that they must give.

A file holds a line on where it comes from (measured, or from documents), then for each of
some ranks the expected result as a comment and the variables. A size of 0 is not given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Recorded:
    """One process of a launch: (rank, size, local rank, local size, family) and its environment."""

    name: str
    expected: tuple[int, int, int, int, str]
    env: dict[str, str]


def recorded(name: str = "*") -> list[Recorded]:
    """Return the processes of the file ``name``, or of all files."""
    paths = sorted(FOLDER.glob(f"{name}.env"))
    assert paths, f"nothing recorded is called {name}"
    return [each for path in paths for each in _read(path)]


def _read(path: Path) -> list[Recorded]:
    found = []
    for block in path.read_text().split("\n\n")[1:]:
        head, *lines = block.strip().splitlines()
        match = re.fullmatch(r"# rank (\d+) of (\d+), local (\d+) of (\d+), (.+)", head)
        assert match, f"{path.name}: {head}"
        rank, size, local_rank, local_size = (int(number) for number in match.groups()[:4])
        env = dict(line.split("=", 1) for line in lines)
        found.append(Recorded(path.stem, (rank, size, local_rank, local_size, match[5]), env))
    return found
