"""The life of one rank, from its settings file to its outcome."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

from megads.cluster.hosts import this_host
from megads.cluster.mpi import finish_mpi
from megads.cluster.ranks import RankInfo, find_ranks
from megads.comm.timeout import connect_again
from megads.config.run_files import METRICS
from megads.config.run_folder import LOG_FILE, OUTCOME, load_config
from megads.config.schema import RunConfig
from megads.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG, ConfigError, LaunchError, MegadsError
from megads.monitor.log import LOG, failure_text, start_log, where
from megads.monitor.run_state.interrupt import EXIT_INTERRUPTED, tell_interrupted
from megads.monitor.run_state.outcome import Outcome, read_heartbeat, tell_first, write_outcome
from megads.monitor.run_state.runs import last_rows
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.monitor.trackers.registry import open_tracks
from megads.text.secrets import hidden
from megads.train.energy import EnergyOfRun
from megads.train.fault.hang_report import Board
from megads.train.fault.stop import StopRequest
from megads.train.fault.walltime import Deadline
from megads.train.fault.watchdog import END, Watchdog
from megads.train.loop import Loop
from megads.train.lr_finder import find_rate
from megads.train.resume import resume
from megads.train.setup import Training, set_up
from megads.train.start_and_end import announce, summarise

LOST_PEER = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "remote process exit"),
)
"""What gloo and NCCL say to the ranks that did not fail."""

FAILED_WAIT_S = 2.0  # for trackers to take their last rows when a run fails
LOST_WAIT_S = 5.0  # for the rank that failed, or its guard, to be the one that tells

Check = Callable[[RunConfig, Path, RankInfo, Mapping[str, str]], Outcome]
"""What a rank may do instead of training, with settings, run folder, rank and environment."""


def work(config_path: Path, env: Mapping[str, str], check: Check | None = None) -> NoReturn:
    """Run this rank to its end and leave the process with its exit code.

    A rank that fails says why and leaves at once: waiting for a collective that will never
    complete would hide the reason behind a time-out. No rank ends through the
    interpreter's own exit, where a gloo thread that is still there can abort it.

    Args:
        config_path: ``<run>/config.yaml``.
        env: this process's environment, for the rank and the device; settings are not read from it.
        check: what this rank does instead of training.
    """
    run_dir = config_path.parent
    info = find_ranks(env)
    try:
        run = load_config(config_path)
    except ConfigError as error:
        if not run_dir.is_dir():
            raise
        _fail(error, run_dir, info, env, 0)
    start_log(info.rank, run.log.log_level, run_dir / LOG_FILE)
    watch = watchdog(run, run_dir, info, env)
    try:
        outcome = check(run, run_dir, info, env) if check else _train(run, run_dir, info, env, watch)
    except KeyboardInterrupt:
        # A launcher of megads writes the outcome itself.
        told = tell_interrupted(run_dir) if is_on_its_own(env) else "megads: interrupted before the run could save\n"
        _leave(told if info.rank == 0 else "", EXIT_INTERRUPTED)
    except BaseException as error:
        _fail(_curable(error, run_dir), run_dir, info, env, watch.iteration)
    finish_mpi()
    # A launcher takes a code other than 0 for a failure; the outcome file tells it of a stop.
    # Rank 0 carries the code of a run that was stopped: a launcher ends all ranks when the first one leaves with it,
    # and rank 0 has a summary to write.
    _leave("", outcome.exit_code if is_on_its_own(env) and info.rank == 0 else EXIT_DONE)


def watchdog(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Watchdog:
    """Return what watches the calling thread of this rank, not started yet."""
    attempt = int(env.get("MEGADS_ATTEMPT") or 0)
    board = Board(lambda: connect_again(env, info.rank), (run_dir / LOG_FILE).parent, attempt)
    return Watchdog(info.rank, info.world_size, run_dir, run.launch.timeout_s, board, attempt)


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
    metrics = _tracks(training, env) if speaks else None
    loop = Loop(training, stop, metrics, watch, EnergyOfRun(training) if run.track.energy else None)
    try:
        outcome = loop.run()
    except BaseException:
        # What the run was like before it failed is what its user will look at.
        if metrics is not None:
            with suppress(Exception):
                metrics.close(FAILED_WAIT_S)
        raise
    loop.enter(END)
    if loop.energy is not None:
        loop.energy.close()
    if speaks:
        watch.beat()  # the process may be gone before the next one is due
    if metrics is not None:
        try:
            metrics.close()
        except OSError as error:
            LOG.warning("%s: %s; its last rows are lost, the checkpoints are complete", run_dir, error.strerror)
        # The outcome first: nothing in the summary can turn a run that ended well into a failure.
        write_outcome(run_dir, outcome)
        summarise(loop, outcome)
        metrics.settle()
    return outcome


def _tracks(training: Training, env: Mapping[str, str]) -> MetricsSink:
    done = training.progress
    return open_tracks(
        training.run,
        training.run_dir,
        env,
        iteration=done.iteration,
        samples=done.consumed_samples,
        world_size=training.groups.grid.world_size,
    )


def step_time_of(run_dir: Path) -> float:
    """Return the seconds of the last step that the run in ``run_dir`` has a row of, 0 where there is none."""
    with suppress(OSError):
        seconds = last_rows(run_dir / METRICS)[0].get("step_time_s")
        return float(seconds) if isinstance(seconds, int | float) else 0.0
    return 0.0


def is_on_its_own(env: Mapping[str, str]) -> bool:
    """Return whether no launcher of megads watches this rank, so that its own exit code is the run's."""
    return env.get("MEGADS_IN_PLACE") == "1" or env.get("MEGADS_WATCHED") != "1"


def _fail(error: BaseException, run_dir: Path, info: RankInfo, env: Mapping[str, str], iteration: int) -> NoReturn:
    """Tell of ``error`` and leave the process without touching another collective.

    The first rank to fail writes the outcome, which informs the launcher; ranks then leave
    with 0, because a starter that sees another code adds pages of its own.
    """
    told, kind = run_dir / OUTCOME, kind_of(error)
    code = EXIT_WRONG if kind == "wrong" else EXIT_FAILED
    text = hidden(f"megads: {error}\n" if kind == "wrong" else failure_text(info.rank, error), env)
    rank, host = info.rank, this_host()
    if kind == "wrong" and info.rank != 0:
        # Most wrong inputs are found by every rank; one line is enough.
        time.sleep(1.0)
        text = "" if os.path.exists(told) else text
    elif kind == "lost":
        rank = -1
        text = "" if _told_in_time(told) else f"[{where(info.rank)}] lost another rank: {str(error).splitlines()[0]}\n"
    if not os.path.exists(told):
        message = f"{where(info.rank)}: {error}"
        if kind == "lost":
            host = peer_host(str(error))
            message = f"{where(info.rank)}: lost another rank{f' on {host}' if host else ''}: {error}"
        with suppress(ConfigError):  # a full disk; the reason still goes to stderr
            tell_first(run_dir, Outcome(code, hidden(message, env), iteration, kind, rank, host))
    _leave(text, EXIT_DONE if os.path.exists(told) and not is_on_its_own(env) else code)


def _told_in_time(told: Path) -> bool:
    """Wait for the rank that failed first: it knows the reason."""
    until, pause = time.monotonic() + LOST_WAIT_S, 0.05
    while time.monotonic() < until and not os.path.exists(told):
        time.sleep(pause)
        pause = min(2 * pause, 1.0)  # ten thousand ranks may ask the same file system
    return os.path.exists(told)


def peer_host(text: str) -> str:
    """Return the host of the rank that is gone, from the address in gloo's message; empty where it has none."""
    match = re.search(r"\[([0-9a-fA-F.:]+)\]:\d+", text)
    if not match:
        return ""
    address = match[1].removeprefix("::ffff:")
    if address.startswith("127.") or address == "::1":
        return this_host()
    try:
        return socket.gethostbyaddr(address)[0].split(".")[0]
    except OSError:
        return address


def kind_of(error: BaseException) -> str:
    """Return which kind of failure ``error`` is; see :class:`megads.monitor.run_state.outcome.Outcome`."""
    if isinstance(error, MegadsError):
        return "wrong"
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "memory"
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEER):
        return "lost"
    return "error"


def _curable(error: BaseException, run_dir: Path) -> BaseException:
    """Return a full disk as the error that informs the user so, any other error as it is."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return LaunchError(f"{error.filename or run_dir}: {error.strerror}; free some space and rerun the same command")
    return error


def _leave(text: str, code: int) -> NoReturn:
    with suppress(OSError):  # a full disk, or nobody reads any more
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)
