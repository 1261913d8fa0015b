"""The exact command of a launch: built first, shown, then run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchPlan:
    """A command and the changes to the environment it runs in.

    ``in_place`` means that the command takes the place of the launching process, which is
    possible when there is one rank. ``forwards_signals`` means that the starter hands a
    SIGUSR1 on to its ranks. ``files`` (path -> text) are written before the command runs:
    a list of ten thousand hosts is too long for a command line.
    """

    argv: tuple[str, ...]
    env: dict[str, str]  # what is set
    unset: tuple[str, ...] = ()
    in_place: bool = False
    forwards_signals: bool = True
    files: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """Return one shell line that does the same when pasted into a terminal."""
        removed = [word for name in self.unset for word in ("-u", name)]
        added = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join(["env", *removed, *added, *self.argv])

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` with the plan's changes."""
        return {name: value for name, value in env.items() if name not in self.unset} | self.env
