"""The life of one rank, from its settings file to its outcome."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from megads.cluster.ranks import RankInfo, find_ranks
from megads.config.files import LOG_FILE, OUTCOME, load_config, write_whole
from megads.config.schema import RunConfig
from megads.errors import ConfigError, LaunchError, MegadsError
from megads.monitor.log import failure_text, start_log, where
from megads.monitor.metrics import MetricsFile
from megads.train.gradients import compare_gradients, joined, report
from megads.train.loop import EXIT_DONE, Loop, Outcome
from megads.train.report import announce, summarise
from megads.train.setup import set_up
from megads.train.stop import StopRequest

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says to the ranks that did not fail."""


def work(config_path: Path, env: Mapping[str, str], *, gradients: bool = False) -> NoReturn:
    """Run this rank to its end and leave the process with its exit code.

    A rank that fails says why and leaves at once: waiting for a collective that will never
    complete would hide the reason behind a time-out. No rank ends through the
    interpreter's own exit, where a gloo thread that is still there can abort it.

    Args:
        config_path: ``<run>/config.yaml``.
        env: this process's environment, for the rank and the device; settings are not read from it.
        gradients: compare the layout's gradients with one rank's instead of training.
    """
    run = load_config(config_path)
    run_dir = config_path.parent
    info = find_ranks(env)
    start_log(info.rank, run.log.log_level, run_dir / LOG_FILE)
    try:
        outcome = (_compare if gradients else _train)(run, run_dir, info, env)
    except KeyboardInterrupt:
        _leave("megads: interrupted before the run could save\n" if info.rank == 0 else "", 130)
    except BaseException as error:
        _fail(_curable(error, run_dir), run_dir, info, env)
    # A launcher takes a code other than 0 for a failure; the outcome file tells it of a stop.
    _leave("", outcome.exit_code if is_in_place(env) else EXIT_DONE)


def _train(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Outcome:
    started = time.perf_counter()
    training = set_up(run, run_dir, info, env)
    resumed = training.resume()
    speaks = info.rank == 0
    if speaks:
        announce(training, resumed, time.perf_counter() - started)
    metrics = MetricsFile(run_dir / "metrics.jsonl", training.progress.iteration) if speaks else None
    stop = StopRequest(run_dir, training.groups, training.device, in_place=is_in_place(env))
    loop = Loop(training, stop, metrics)
    outcome = loop.run()
    if metrics is not None:
        metrics.close()
        # The outcome first: nothing in the summary can turn a run that ended well into a failure.
        write_outcome(run_dir, outcome)
        summarise(loop, outcome)
    return outcome


def _compare(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Outcome:
    with joined(run, info, env) as (groups, device):
        found = compare_gradients(run, groups, device)
    outcome = Outcome(EXIT_DONE if found.is_equal else 1, "equal" if found.is_equal else "not equal", 0)
    if info.rank == 0:
        sys.stdout.write(report(found))
        write_outcome(run_dir, outcome)
    return outcome


def is_in_place(env: Mapping[str, str]) -> bool:
    """Return whether no launcher watches this rank, so that its own exit code is the run's."""
    return env.get("MEGADS_IN_PLACE") == "1"


def _fail(error: BaseException, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> NoReturn:
    """Tell of ``error`` and leave the process without touching another collective.

    The first rank to fail writes the outcome, which tells the launcher; ranks then leave
    with 0, because a starter that sees another code adds pages of its own.
    """
    told = run_dir / OUTCOME
    code, text = 1, failure_text(info.rank, error)
    if isinstance(error, MegadsError):
        code, text = 2, f"megads: {error}\n"
        if info.rank != 0:
            # Most wrong inputs are found by every rank; one line is enough.
            time.sleep(1.0)
            text = "" if told.exists() else text
    elif _is_lost_peer(error):
        # The rank that failed first tells the reason; let it speak before this one.
        time.sleep(1.0)
        text = f"[{where(info.rank)}] lost another rank: {str(error).splitlines()[0]}\n"
    if not told.exists() and not _is_lost_peer(error):
        with suppress(ConfigError):  # a full disk; the reason still goes to stderr
            write_outcome(run_dir, Outcome(code, f"{where(info.rank)}: {error}", 0))
    _leave(text, EXIT_DONE if told.exists() and not is_in_place(env) else code)


def _curable(error: BaseException, run_dir: Path) -> BaseException:
    """Return a full disk as the error that tells the user so, any other error as it is."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return LaunchError(
            f"{error.filename or run_dir}: {error.strerror}; free some space and give the same command again"
        )
    return error


def _leave(text: str, code: int) -> NoReturn:
    with suppress(OSError):  # a full disk, or nobody reads any more
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)


def _is_lost_peer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEER)


def write_outcome(run_dir: Path, outcome: Outcome) -> None:
    """Write ``outcome.json``, which tells the launcher how the run ended."""
    write_whole(run_dir / OUTCOME, json.dumps(vars(outcome)) + "\n")
