"""``megads worker``: what every rank runs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from megads.launch.guard import stand_guard
from megads.launch.stale import IN_PLACE


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="<run>/config.yaml")
@click.option("--gradients", is_flag=True, help="Compare the layout's gradients with one rank's instead of training.")
def worker(path: Path, gradients: bool) -> None:
    """Run one rank of a training run (called by the launcher)."""
    env = dict(os.environ)
    if env.get(IN_PLACE) != "1":  # else this process is the run, and its exit code is what it must be
        stand_guard(path.parent, env)
    from megads.train.worker import work

    work(path, env, gradients=gradients)
