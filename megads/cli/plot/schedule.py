"""``megads plot schedule``: learning rate, weight decay and batch of a run before it starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import settings_command
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest


@settings_command
@click.option("--nodes", type=click.IntRange(min=0), default=0, help="Hosts of the training job.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into this PNG file too.")
def schedule(request: Callable[[], TrainRequest], nodes: int, output: Path | None) -> None:
    """Draw the schedule of the run that `megads train` would start; nothing is started.

    \b
      megads plot schedule --preset 7B -o schedule.png
      LR_DECAY_STYLE=wsd COOLDOWN=0.2 megads plot schedule --preset 7B --nodes 64

    The same settings, environment and --set as for `megads train`.
    """
    from megads.errors import ConfigError
    from megads.launch.submit.training import plan_ahead
    from megads.monitor.plots.schedule import Curves, render_schedule, schedule_table, sketch_schedule

    run = plan_ahead(request(), nodes)
    curves = Curves.of(run)
    title = (
        f"{run.name}: {run.optim.lr_decay_style}, {plural(run.train.train_iters, 'step', ',')}, "
        f"{plural(run.train.train_tokens, 'token', ',')}"
    )
    click.echo(f"{title}\n\n{sketch_schedule(curves)}\n{schedule_table(run)}")
    if output is None:
        return
    try:
        render_schedule(curves, title).savefig(output)
    except OSError as error:
        raise ConfigError(f"-o {output}: {error.strerror}; use a file that can be written") from None
    click.echo(f"\n{output}")
