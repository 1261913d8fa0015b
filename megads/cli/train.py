"""``megads train``: from settings to ranks."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from megads.cli.flags import EPILOG, FlagCommand


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", help="Model preset; `megads config --presets` lists them.")
@click.option(
    "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Print settings, DeepSpeed's dictionary and the command; start nothing.")
def train(preset: str | None, pairs: tuple[str, ...], dry_run: bool, flags: tuple[tuple[str, str], ...]) -> None:
    """Train a model. Settings: default < preset < machine < environment < --set."""
    from megads.launch.ask import Ask
    from megads.launch.job import describe, prepare, start

    ask = Ask(
        preset=preset,
        pairs=pairs,
        env=dict(os.environ),
        hostname=socket.gethostname(),
        root=Path(os.environ.get("MEGADS_ROOT") or Path(__file__).parents[2]),
        python=sys.executable,
        words=tuple(sys.argv[1:]),
        flags=flags,
    )
    job = prepare(ask)
    if dry_run:
        for note in job.resolved.notes:
            click.echo(f"megads: {note}", err=True)
        click.echo(describe(job))
        return
    sys.exit(start(job, sys.stderr))
