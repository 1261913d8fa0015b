"""``megads doctor``: is this machine, with these versions, right?"""

from __future__ import annotations

import sys

import click

from megads.cli.ask import ask_of
from megads.cli.flags import EPILOG, FlagCommand


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", help="Model preset, for the kind of model.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting.")
@click.option(
    "--gradients", is_flag=True, help="Compare the loss and gradients of the layout (TP, PP, SP ...) with one rank's."
)
def doctor(preset: str | None, pairs: tuple[str, ...], gradients: bool, flags: tuple[tuple[str, str], ...]) -> None:
    """Check the layout that the settings describe, on a tiny model: TP=2 PP=2 megads doctor --gradients"""
    from megads.errors import ConfigError
    from megads.launch.doctor import check_gradients

    if not gradients:
        raise ConfigError("megads doctor needs to know what to check: megads doctor --gradients")
    sys.exit(check_gradients(ask_of(preset, pairs, flags), sys.stdout))
