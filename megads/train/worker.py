"""The life of one rank, from its settings file to its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from megads.cluster.mpi import finish_mpi
from megads.cluster.ranks import RankInfo, find_ranks
from megads.comm.leaving import disconnect
from megads.comm.rendezvous import connect_again
from megads.config.run_folder import LOG_FILE, load_config
from megads.config.schema import RunConfig
from megads.errors import EXIT_DONE, ConfigError
from megads.monitor.log import LOG, start_log
from megads.monitor.run_state.interrupt import EXIT_INTERRUPTED, report_interrupted
from megads.monitor.run_state.outcome import Outcome, read_heartbeat, write_outcome
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.monitor.trackers.registry import open_trackers
from megads.train.energy import EnergyOfRun
from megads.train.fault.failure import fail, is_on_its_own, leave
from megads.train.fault.hang_report import Board
from megads.train.fault.kept_claim import keep_claim
from megads.train.fault.stop import Deadline, StopRequest, step_time_of
from megads.train.fault.watchdog import END, Watchdog
from megads.train.loop import Loop
from megads.train.loop_kind import loop_kind
from megads.train.lr_finder import find_rate
from megads.train.resume import resume
from megads.train.setup import set_up
from megads.train.start_and_end import announce, conclude

FAILED_WAIT_S = 2.0  # for trackers to take their last rows when a run fails
Check = Callable[[RunConfig, Path, RankInfo, Mapping[str, str]], Outcome]
"""What a rank may do instead of training, with settings, run folder, rank and environment."""


def main(config_path: Path, env: Mapping[str, str], check: Check | None = None) -> NoReturn:
    """Run this rank to its end and leave the process with its exit code.

    A rank that fails says why and leaves at once: waiting for a collective that will never
    complete would hide the reason behind a time-out. No rank ends through the
    interpreter's own exit, where a gloo thread that is still there can abort it.

    ``env`` has the rank and the device, no settings; ``check`` is what this rank does instead of training.
    """
    run_dir = config_path.parent
    info = find_ranks(env)
    try:
        run = load_config(config_path)
    except ConfigError as error:
        if not run_dir.is_dir():
            raise
        fail(error, run_dir, info, env, 0)
    start_log(info.rank, run.log.log_level, run_dir / LOG_FILE)
    watch = watchdog(run, run_dir, info, env)
    try:
        outcome = check(run, run_dir, info, env) if check else _train(run, run_dir, info, env, watch)
    except KeyboardInterrupt:
        # A launcher of megads writes the outcome itself.
        text = report_interrupted(run_dir) if is_on_its_own(env) else "megads: interrupted before the run could save\n"
        watch.claim.end()
        leave(text if info.rank == 0 else "", EXIT_INTERRUPTED)
    except BaseException as error:
        fail(error, run_dir, info, env, watch.iteration, watch.claim.end)
    _let_go(watch)
    finish_mpi()
    # A launcher takes a code other than 0 for a failure; the outcome file informs it of a stop.
    # Rank 0 carries the code of a run that was stopped: a launcher ends all ranks when the first one leaves with it,
    # and rank 0 has a summary to write.
    leave("", outcome.exit_code if is_on_its_own(env) and info.rank == 0 else EXIT_DONE)


def watchdog(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Watchdog:
    """Return what watches the calling thread of this rank, not started yet."""
    attempt = int(env.get("MEGADS_ATTEMPT") or 0)
    board = Board(lambda: connect_again(env, info.rank), (run_dir / LOG_FILE).parent, attempt)
    claim = keep_claim(run, run_dir, info.rank, env)
    return Watchdog(info.rank, info.world_size, run_dir, run.launch.timeout_s, board, attempt, claim)


def _train(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str], watch: Watchdog) -> Outcome:
    started = time.perf_counter()
    earlier = read_heartbeat(run_dir)
    watch.save_s = earlier.save_s if earlier else 0.0
    watch.start()
    training = set_up(run, run_dir, info, env)
    watch.hosts = training.hosts
    resumed = resume(training)
    speaks = info.rank == 0
    deadline = Deadline.of(run, env, info.world_size, watch.save_s)
    deadline.set_up_s = time.perf_counter() - started
    if speaks:
        announce(training, resumed, deadline.set_up_s)
        deadline.step_s = step_time_of(run_dir)
    stop = StopRequest(
        run_dir,
        training.groups,
        training.device,
        in_place=is_on_its_own(env),
        deadline=deadline,
        exit_duration_min=run.train.exit_duration_min,
    )
    if run.lr_finder.enabled:
        outcome = find_rate(training, stop, watch)
        if speaks:
            watch.beat()
            write_outcome(run_dir, outcome)
        return outcome
    done, metrics = training.progress, None
    if speaks:
        counts = {"iteration": done.iteration, "samples": done.consumed_samples, "world_size": info.world_size}
        metrics = open_trackers(run, run_dir, env, **counts)
    loop: Loop = loop_kind(run)(training, stop, metrics, watch, EnergyOfRun(training) if run.track.energy else None)
    with ExitStack() as on_failure:
        if metrics is not None:
            # What the run was like before it failed is what its user will look at.
            on_failure.callback(_close_quietly, metrics)
        outcome = loop.run()
        on_failure.pop_all()
    loop.enter(END)
    if loop.energy is not None:
        loop.energy.close()
    _disconnect()  # before rank 0 writes its summary, which no other rank waits for
    if speaks:
        watch.beat()  # the process may be gone before the next one is due
    if metrics is not None:
        try:
            metrics.close()
        except OSError as error:
            LOG.warning("%s: %s; its last rows are lost, the checkpoints are complete", run_dir, error.strerror)
        conclude(loop, outcome)
        metrics.settle()
    return outcome


def _let_go(watch: Watchdog) -> None:
    """Leave the folder to the next run, and the other ranks."""
    watch.claim.end()
    _disconnect()


def _disconnect() -> None:
    """Leave the other ranks; what was computed stays right, however that goes."""
    if problem := disconnect():
        LOG.warning("this rank ends without the others: %s", problem)


def _close_quietly(metrics: MetricsSink) -> None:
    with suppress(Exception):
        metrics.close(FAILED_WAIT_S)
