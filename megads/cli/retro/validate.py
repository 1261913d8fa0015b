"""``megads retro validate``: recompute a share of a project."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.retro.steps import PROJECT, WORKERS, how_of
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.retro.run import How


@click.command()
@PROJECT
@click.option(
    "--retro-task-validate",
    "--share",
    "share",
    type=float,
    default=0.01,
    show_default=True,
    help="Share of the files of every step that is recomputed.",
)
@click.option("--seed", type=int, help="Of the files that are drawn.  [default: others every time]")
@click.option("--repair", "mend", is_flag=True, help="Remove what is damaged and build it again.")
@WORKERS
def validate(folder: str, share: float, seed: int | None, mend: bool, **options: Any) -> None:
    """Recompute a share of a Retro project's files and compare them bit by bit."""
    run(folder, share, seed, how_of(options), mend=mend)


def run(folder: str, share: float, seed: int | None, how: How, *, mend: bool) -> None:
    """Check a project, and print what was found."""
    from megads.cluster.mpi import finish_mpi
    from megads.data.preprocess.team import EndedByLeader
    from megads.retro.run import TASKS, run_steps, run_validation

    drawn = secrets.randbelow(1 << 31) if seed is None else seed
    try:
        found = run_validation(Path(folder), share, drawn, how, sys.stderr, mend=mend)
        if mend:
            run_steps(Path(folder), {}, TASKS["build"], how, sys.stderr)
    except EndedByLeader:
        sys.exit(2)
    if found is not None:
        what = f"{plural(len(found.damaged), 'file')} built again" if found.damaged else "no difference"
        click.echo(f"{folder}: {plural(found.blocks, 'file')} recomputed, {what} (--seed {drawn})")
    finish_mpi()
