"""A group of commands that are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LateGroup(click.Group):
    """Loads its commands late.

    Args:
        late: name of a command -> its module and one line of help.
        suffix: what the name of its function ends with, behind the command's own.
    """

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]], suffix: str = "", **more: Any):
        super().__init__(*args, **more)
        self.late, self.suffix = late, suffix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.late:
            return None
        module = importlib.import_module(self.late[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_") + self.suffix)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.late.items()])
