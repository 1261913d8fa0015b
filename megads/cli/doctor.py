"""``megads doctor``: is this machine, with these versions, right?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import settings_command

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest


def _check_seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 1 <= value <= 86400:  # a range of click lets nan through
        raise click.BadParameter(f"{value:g} is not from 1 to 86400 seconds")
    return value


@settings_command
@click.option("--timeout", default=120.0, show_default=True, callback=_check_seconds, help="Seconds for a stage.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object; stages go to stderr.")
@click.option(
    "--gradients", is_flag=True, help="Compare the loss and gradients of the layout (TP, PP, SP ...) with one rank's."
)
def doctor(request: Callable[[], TrainRequest], timeout: float, as_json: bool, gradients: bool) -> None:
    """Check hosts, versions, devices, network and disks, stage by stage: NGPU_PER_HOST=2 megads doctor

    Exit codes: 0 all right, 1 something is wrong, 2 a wrong setting.
    """
    if gradients:
        from megads.doctor.launcher.gradients import check_gradients

        if as_json:
            raise click.UsageError("--json and --gradients exclude each other; drop one")
        sys.exit(check_gradients(request(), sys.stdout))
    from megads.doctor.launcher.run import check_health

    sys.exit(check_health(request(), sys.stdout, sys.stderr, limit_s=timeout, as_json=as_json))


@click.command()
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="where the launcher left the options")
def health(folder: Path) -> None:
    """Take part in a check as one rank (called by megads doctor)."""
    from megads.doctor.ranks.worker import main

    main(folder, dict(os.environ))
