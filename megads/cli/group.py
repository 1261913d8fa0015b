"""A group of commands that are imported when they are used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import click

from megads.errors import MegadsError


def refuse_unknown_command(ctx: click.Context, word: str, known: Iterable[str]) -> None:
    """Say which commands a misspelt one may mean.

    Raises:
        MegadsError: ``word`` is none of ``known``.
    """
    if word in known or word.startswith("-"):
        return
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"`{ctx.command_path} --help` lists what there is"
    raise MegadsError(f"no command {word!r}; {hint}")


class LateGroup(click.Group):
    """Loads its commands late.

    Args:
        late: name of a command -> its module and one line of help.
        suffix: what the name of its function ends with, behind the command's own.
    """

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]], suffix: str = "", **more: Any):
        super().__init__(*args, **more)
        self.late, self.suffix = late, suffix

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of ``args``."""
        refuse_unknown_command(ctx, args[0], self.late)
        return super().resolve_command(ctx, args)

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
