"""``megads doctor``: is this machine, with these versions, right?"""

from __future__ import annotations

import sys

import click

from megads.cli.options.flags import EPILOG, FlagCommand
from megads.cli.options.request import ask_of


def _check_seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 1 <= value <= 86400:  # a range of click lets nan through
        raise click.BadParameter(f"{value:g} is not from 1 to 86400 seconds")
    return value


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", help="Model preset, for the kind of model.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting.")
@click.option("--timeout", default=120.0, show_default=True, callback=_check_seconds, help="Seconds for a stage.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object; stages go to stderr.")
@click.option(
    "--gradients", is_flag=True, help="Compare the loss and gradients of the layout (TP, PP, SP ...) with one rank's."
)
def doctor(
    preset: str | None,
    pairs: tuple[str, ...],
    timeout: float,
    as_json: bool,
    gradients: bool,
    flags: tuple[tuple[str, str], ...],
) -> None:
    """Check hosts, versions, devices, network and disks, stage by stage: NGPU_PER_HOST=2 megads doctor

    Exit codes: 0 all right, 1 something is wrong, 2 a wrong setting.
    """
    ask = ask_of(preset, pairs, flags)
    if gradients:
        from megads.doctor.launcher.gradients import check_gradients

        if as_json:
            raise click.UsageError("--json and --gradients exclude each other; drop one")
        sys.exit(check_gradients(ask, sys.stdout))
    from megads.doctor.launcher.run import Wanted, check_health

    sys.exit(check_health(ask, Wanted(timeout, as_json), sys.stdout, sys.stderr))
