"""``megads worker``: what every rank runs."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="<run>/config.yaml")
@click.option("--gradients", is_flag=True, help="Compare the layout's gradients with one rank's instead of training.")
def worker(path: Path, gradients: bool) -> None:
    """Run one rank of a training run (called by the launcher)."""
    from megads.train.worker import work

    work(path, dict(os.environ), gradients=gradients)
