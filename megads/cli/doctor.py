"""``megads doctor``: is this machine, with these versions, right?"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click


@click.command()
@click.option("--preset", help="Model preset, for the kind of model.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting.")
@click.option(
    "--gradients", is_flag=True, help="Compare the loss and gradients of the layout (TP, PP, SP ...) with one rank's."
)
def doctor(preset: str | None, pairs: tuple[str, ...], gradients: bool) -> None:
    """Check the layout that the settings describe, on a tiny model: TP=2 PP=2 megads doctor --gradients"""
    from megads.errors import ConfigError
    from megads.launch.ask import Ask
    from megads.launch.doctor import check_gradients

    if not gradients:
        raise ConfigError("megads doctor needs to know what to check: megads doctor --gradients")
    ask = Ask(
        preset=preset,
        pairs=pairs,
        env=dict(os.environ),
        hostname=socket.gethostname(),
        root=Path(os.environ.get("MEGADS_ROOT") or Path(__file__).parents[2]),
        python=sys.executable,
        words=tuple(sys.argv[1:]),
    )
    sys.exit(check_gradients(ask, sys.stdout))
