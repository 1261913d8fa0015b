"""The exact command of a launch: built first, shown, then run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from megads.errors import LaunchError

_END = "end-of-file"
BRIEF = 100  # letters of a command on the screen


@dataclass(frozen=True)
class LaunchPlan:
    """A command and the changes to the environment it runs in.

    ``in_place`` means that the command takes the place of the launching process, which is
    possible when there is one rank. ``forwards_signals`` means that the starter hands a
    SIGUSR1 on to its ranks. ``files`` (path -> text) are written before the command runs:
    a list of ten thousand hosts is too long for a command line. ``private`` is set as ``env``
    is, and never shown: a pasted command makes its own.
    """

    argv: tuple[str, ...]
    env: dict[str, str]  # what is set
    unset: tuple[str, ...] = ()
    in_place: bool = False
    forwards_signals: bool = True
    files: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict, repr=False)

    def hiding(self, *names: str) -> LaunchPlan:
        """Return the plan with variables that ranks get and nobody is shown."""
        hidden = {name: self.env[name] for name in names if name in self.env}
        shown = {name: value for name, value in self.env.items() if name not in hidden}
        return replace(self, env=shown, private={**self.private, **hidden})

    def line(self) -> str:
        """Return one shell line that does the same when pasted into a terminal."""
        removed = [word for name in self.unset for word in ("-u", name)]
        added = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join(["env", *removed, *added, *self.argv])

    def brief(self) -> str:
        """Return the command without the changes to the environment, and of long ones the beginning."""
        line = shlex.join([Path(self.argv[0]).name, *self.argv[1:]])
        return line if len(line) <= BRIEF else f"{line[: BRIEF - 3]}..."

    def script(self) -> str:
        """Return shell lines that do the same when pasted: they write :attr:`files`, then run the command.

        Every change to the environment has a line of its own, sorted, so that two plans can be compared.
        """
        folders = sorted({str(Path(path).parent) for path in self.files})
        lines = [shlex.join(["mkdir", "-p", *folders])] if folders else []
        for path, text in self.files.items():
            lines += [f"cat >{shlex.quote(path)} <<'{_END}'", text.rstrip("\n"), _END]
        words = [f"-u {shlex.quote(name)}" for name in self.unset]
        words += [shlex.quote(f"{name}={value}") for name, value in sorted(self.env.items())]
        return "\n".join([*lines, " \\\n  ".join(["env", *words, shlex.join(self.argv)])])

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` with the plan's changes."""
        return {name: value for name, value in env.items() if name not in self.unset} | self.env | self.private

    def write_files(self) -> None:
        """Write :attr:`files`; folders that are missing are made, for this user only.

        Raises:
            LaunchError: a file cannot be written.
        """
        for name, text in self.files.items():
            path = Path(name)
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A name in a shared temporary folder may be somebody else's link: never write through one.
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
                with open(handle, "w", encoding="utf8") as file:
                    file.write(text)
            except OSError as error:
                raise LaunchError(f"{path}: {error.strerror}; the launcher reads its hosts from this file") from None
