"""``megads worker``: what every rank runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import checkout, ignores_local_rank
from megads.cluster.ranks import TOKEN, RankInfo
from megads.config.run_files import CONFIG
from megads.launch.launchers.plan import IN_PLACE, WATCHED
from megads.launch.supervise.rank_parent import stand_guard
from megads.monitor.run_state.interrupt import handle_ctrl_c

if TYPE_CHECKING:
    from megads.launch.launchers.plan import LaunchPlan
    from megads.launch.user_ranks.entry import Started


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--config", "path", type=click.Path(path_type=Path), help="RUN/config.yaml, instead of RUN.")
@click.option("--gradients", is_flag=True, help="Compare the layout's gradients with one rank's instead of training.")
@ignores_local_rank
def worker(run: Path | None, path: Path | None, gradients: bool) -> None:
    """Run one rank of the run in the folder RUN: mpiexec -n 8 megads worker RUN

    `megads train --prepare` writes the folder. Its launcher calls this for every rank.
    """
    if (run is None) == (path is None):
        raise click.UsageError("pass the run folder, e.g. megads worker runs/7B")
    path = path or Path(run or "", CONFIG)
    env = dict(os.environ)
    if not env.get(TOKEN) and not gradients:
        _by_hand(path.parent, env)
    if env.get(IN_PLACE) == "1":  # this process is the run, and its exit code is what it must be
        handle_ctrl_c(path.parent)
    else:
        stand_guard(path.parent, env)
    from megads.train.worker import main

    if not gradients:
        main(path, env)
    from megads.doctor.ranks.gradients import compare_run

    main(path, env, compare_run)


def _by_hand(folder: Path, env: dict[str, str]) -> None:
    """Be a rank that the user started: meet the others first; they all call this command again."""
    from megads.launch.user_ranks.entry import become_rank, started_rank

    env.pop(WATCHED, None)
    info = started_rank(env) or RankInfo(0, 1, 0, 1, "single")

    def prepare(started: Started, begin: Callable[[LaunchPlan], int]) -> int:
        from megads.launch.user_ranks.prepared import run_prepared

        return run_prepared(folder, env, checkout(), started, begin)

    become_rank(info, env, prepare)
