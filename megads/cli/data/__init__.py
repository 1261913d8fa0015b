"""``megads data``: make, join and look at token files."""

from __future__ import annotations

import click

from megads.cli import CommandGroup

COMMANDS = {
    "from-text": ("megads.cli.data.text", "Plain text files to JSON lines."),
    "preprocess": ("megads.cli.data.preprocess", "JSON lines to token files."),
    "train-tokenizer": ("megads.cli.data.tokenizer", "Make a byte-level BPE from JSON lines."),
    "merge": ("megads.cli.data.files", "Join token files into one."),
    "info": ("megads.cli.data.files", "Show what token files hold."),
    "check": ("megads.cli.data.files", "Check every invariant of token files or of a list of them."),
    "index": ("megads.cli.data.index", "Build a run's sample indices before it starts."),
}


@click.group(cls=CommandGroup, late=COMMANDS)
def data() -> None:
    """Make, join and look at token files."""
