"""Ranks that the user starts on a run folder that is there: ``mpiexec -n 8 megads worker RUN``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.cluster.ranks import TOKEN
from megads.config.run_files import LEASE
from megads.config.run_folder import CONFIG, load_config
from megads.config.sizes import model_degree
from megads.config.sources.presets import read_machine
from megads.errors import LaunchError
from megads.launch.claims import claim_all
from megads.launch.launchers.command import plan_started
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.plan_run import rank_additions, rank_command
from megads.launch.preflight.process_limits import check_open_files
from megads.launch.run_folder import iterations_done
from megads.launch.schedulers.allocation import find_allocation
from megads.launch.schedulers.time_left import ends_at, started_at
from megads.launch.supervise.record import attempt_of, begin_row
from megads.launch.supervise.watch import say
from megads.launch.user_ranks.entry import Started
from megads.text.plural import plural


def run_prepared(
    folder: Path, env: Mapping[str, str], root: Path, started: Started, begin: Callable[[LaunchPlan], int]
) -> int:
    """Check that the ranks that are there fit the run in ``folder``, hold it, and let them begin.

    Returns:
        The exit code, if ``begin`` returns; 0 when the run is complete.

    Raises:
        MegadsError: there is no run folder, it is of another number of ranks, or another run holds it.
    """
    run = load_config(folder / CONFIG)
    size = model_degree(run) * run.parallel.data
    if size != len(started.hosts):
        raise LaunchError(
            f"{folder} is prepared for {plural(size, 'rank')}, and {started.by} started {len(started.hosts)}; start "
            f"{size}, or rewrite the folder with megads train --prepare"
        )
    if iterations_done(folder) >= run.train.train_iters and not run.train.evaluate_only:
        say(f"{folder} is complete ({plural(run.train.train_iters, 'iteration')})")
        return 0
    facts = read_machine(run.machine, root).facts
    no_wish = run.launch.model_copy(update={"num_hosts": 0, "ranks_per_host": 0})
    allocation = find_allocation(run.model_copy(update={"launch": no_wish}), env, facts, started)
    check_open_files(size)
    ends = ends_at(allocation, env, run.launch.walltime, started_at(), say=say)
    with claim_all(run, folder, allocation.job_id) as (lease, checkpoints):
        command, extra = rank_command(sys.executable, folder), rank_additions(run, env, ends, lease)
        plan = plan_started(allocation, started.by, command, env, facts=facts, extra=extra).hiding(TOKEN, LEASE)
        saved = [iteration_of(path) for path in list_checkpoints(checkpoints)]
        begin_row(folder, attempt_of(run, allocation, max(saved, default=0)))
        return begin(plan)
