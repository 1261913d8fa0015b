"""``megads stop``: end a run after its current step, with a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def stop(run: Path) -> None:
    """Ask the run in folder RUN to save and stop at the next step."""
    from megads.launch.run_folder import request_stop

    request_stop(run)
    click.echo(f"{run}: will save and stop after its current step")
