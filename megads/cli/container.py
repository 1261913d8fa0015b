"""``megads container``: what a rank in a container finds there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from megads.cli import CommandGroup
from megads.cli.options.request import checkout

COMMANDS = {"check": ("megads.cli.container", "Check, inside, what ranks in this container find.")}


@click.group(cls=CommandGroup, late=COMMANDS, suffix="_command")
def container() -> None:
    """Containers in which ranks run: see CONTAINER and docs/containers.md."""


@click.command()
@click.option(
    "--folder",
    default="runs",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where run folders will be; ranks must be able to write there.",
)
def check_command(folder: Path) -> None:
    """Check what ranks in this container find: Python, torch, devices, MPI, fabric, folders, the launcher's variables.

    megads launch --container llm.sif -- python3 -m megads container check

    Rank 0 prints every line, the others what is wrong. Exit codes: 0 all right, 1 something is missing.
    """
    from megads.doctor.container import check_inside

    sys.exit(check_inside(dict(os.environ), folder, checkout(), click.echo))
