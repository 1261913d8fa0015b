"""``megads train``: from settings to ranks."""

from __future__ import annotations

import sys

import click

from megads.cli.ask import ask_of
from megads.cli.flags import EPILOG, FlagCommand


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", help="Model preset; `megads config --presets` lists them.")
@click.option(
    "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Print settings, DeepSpeed's dictionary and the command; start nothing.")
def train(preset: str | None, pairs: tuple[str, ...], dry_run: bool, flags: tuple[tuple[str, str], ...]) -> None:
    """Train a model. Settings: default < preset < machine < environment < --set."""
    from megads.launch.job import describe, prepare, start

    job = prepare(ask_of(preset, pairs, flags))
    if dry_run:
        for note in job.resolved.notes:
            click.echo(f"megads: {note}", err=True)
        click.echo(describe(job))
        return
    sys.exit(start(job, sys.stderr))
