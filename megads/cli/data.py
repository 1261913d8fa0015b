"""``megads data``: make, join and look at token files."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "preprocess": ("megads.cli.data_preprocess", "JSON lines to token files."),
    "train-tokenizer": ("megads.cli.data_tokenizer", "Make a byte-level BPE from JSON lines."),
    "merge": ("megads.cli.data_files", "Join token files into one."),
    "info": ("megads.cli.data_files", "Show what token files hold."),
    "check": ("megads.cli.data_files", "Check every invariant of token files or of a list of them."),
    "index": ("megads.cli.data_index", "Build a run's sample indices before it starts."),
}


class _DataGroup(click.Group):
    """Loads its commands when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_DataGroup)
def data() -> None:
    """Make, join and look at token files."""
