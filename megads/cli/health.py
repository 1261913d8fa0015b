"""``megads health``: what every rank of ``megads doctor`` runs."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="where the launcher left the options")
def health(folder: Path) -> None:
    """Take part in a check as one rank (called by megads doctor)."""
    from megads.doctor.ranks.worker import work

    work(folder, dict(os.environ))
