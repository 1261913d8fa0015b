"""Lines worth showing to the user, on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click


def show_notes(notes: Iterable[str]) -> None:
    """Print a line for each note that says something, without the secrets that it may quote."""
    from megads.text.secrets import hidden

    for note in notes:
        if note:
            click.echo(f"megads: {hidden(note, os.environ)}", err=True)
