"""The life of one rank, from its settings file to its outcome."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from megads.cluster.ranks import RankInfo, find_ranks
from megads.config.files import load_config
from megads.config.schema import RunConfig
from megads.errors import MegadsError
from megads.monitor.log import LOG, failure_text, start_log, where
from megads.monitor.metrics import MetricsFile, read_metrics
from megads.monitor.plot import loss_sketch, save_loss_plot
from megads.monitor.text import count, duration, size
from megads.train.loop import EXIT_DONE, Loop, Outcome
from megads.train.setup import Training, set_up
from megads.train.stop import StopRequest

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Gloo", "NCCL")


def work(config_path: Path, env: Mapping[str, str]) -> NoReturn:
    """Run this rank to its end and leave the process with its exit code.

    A rank that fails says why and leaves at once: waiting for a collective that will never
    complete would hide the reason behind a time-out. No rank ends through the
    interpreter's own exit, where a gloo thread that is still there can abort it.

    Args:
        config_path: ``<run>/config.yaml``.
        env: this process's environment, for the rank and the device; settings are not read from it.
    """
    run = load_config(config_path)
    run_dir = config_path.parent
    info = find_ranks(env)
    start_log(info.rank, run.log.log_level)
    try:
        outcome = _train(run, run_dir, info, env)
    except BaseException as error:
        _fail(error, run_dir, info)
    if info.rank == 0:
        write_outcome(run_dir, outcome)
    if dist.is_initialized():
        dist.destroy_process_group()
    # A launcher takes a code other than 0 for a failure; the outcome file tells it of a stop.
    _leave("", outcome.exit_code if is_in_place(env) else EXIT_DONE)


def _train(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Outcome:
    started = time.perf_counter()
    training = set_up(run, run_dir, info, env)
    resumed = training.resume()
    speaks = info.rank == 0
    if speaks:
        _announce(training, resumed, time.perf_counter() - started)
    metrics = MetricsFile(run_dir / "metrics.jsonl", training.progress.iteration) if speaks else None
    stop = StopRequest(run_dir, training.groups, training.device, in_place=is_in_place(env))
    loop = Loop(training, stop, metrics)
    outcome = loop.run()
    if metrics is not None:
        metrics.close()
        _summarise(loop, outcome)
    return outcome


def is_in_place(env: Mapping[str, str]) -> bool:
    """Return whether no launcher watches this rank, so that its own exit code is the run's."""
    return env.get("MEGADS_IN_PLACE") == "1"


def _announce(training: Training, resumed: Path | None, seconds: float) -> None:
    """Say on which device the run is, how long its set-up took and where it starts."""
    vendor, device = training.vendor, training.device
    parts = ", ".join(f"{name} {took:.1f}s" for name, took in training.timings.items())
    LOG.info(
        "device   %s x %d, backend %s, torch %s",
        vendor.device_name(device),
        training.groups.grid.world_size,
        vendor.backend,
        torch.__version__,
    )
    peak = training.peak_tflops
    known = f"{peak:g} TFLOP/s in {training.run.train.dtype}" if peak else "unknown; set MEGADS_PEAK_TFLOPS to see it"
    LOG.info("mfu      %s", f"of {known}" if peak else known)
    LOG.info("set up   in %s (%s)", duration(seconds), parts)
    if resumed is None:
        LOG.info("start    from new weights, seed %d", training.run.train.seed)
    else:
        LOG.info("resume   from %s, iteration %d", resumed, training.progress.iteration)


def _summarise(loop: Loop, outcome: Outcome) -> None:
    """Say how the run went and what to do next; draw the loss."""
    t = loop.training
    rows = read_metrics(t.run_dir / "metrics.jsonl")
    done = t.progress
    picture = t.run_dir / "loss.png"
    if any("lm_loss" in row for row in rows):
        save_loss_plot(rows, picture, t.run.name)
        LOG.info("\n%s", loss_sketch(rows))
    LOG.info("")
    LOG.info("%s", ending(outcome, t.run.train.train_iters))
    if done.first_loss is not None and done.last_loss is not None:
        LOG.info("loss     training %.4f -> %.4f%s", done.first_loss, done.last_loss, _validation(loop))
    LOG.info("speed    %s tokens/s (median step)", count(loop.median_tokens_per_s()))
    LOG.info("memory   %s at most on rank 0", size(t.vendor.memory_bytes(t.device)))
    LOG.info("folder   %s (metrics.jsonl, loss.png, config.yaml)", t.run_dir)
    command = t.run_dir / "command.txt"
    if command.is_file():
        line = command.read_text(encoding="utf8").strip()
        if outcome.exit_code:
            LOG.info("resume   %s", line)
        else:
            LOG.info("longer   %s", longer(line, 2 * t.run.train.train_iters))


def ending(outcome: Outcome, train_iters: int) -> str:
    """Return the summary's first line."""
    word = "done" if outcome.exit_code == EXIT_DONE else "stopped"
    why = "" if outcome.exit_code == EXIT_DONE else f"; {outcome.message}"
    return f"{word:8} {outcome.iteration} of {train_iters} iterations{why}"


def longer(command: str, train_iters: int) -> str:
    """Return the command line with another ``TRAIN_ITERS``."""
    return f"TRAIN_ITERS={train_iters} " + re.sub(r"\bTRAIN_ITERS?=\d+ ", "", command)


def _validation(loop: Loop) -> str:
    first, last = loop.training.progress.first_valid_loss, loop.training.progress.last_valid_loss
    return f", validation {first:.4f} -> {last:.4f}" if first is not None and last is not None else ""


def _fail(error: BaseException, run_dir: Path, info: RankInfo) -> NoReturn:
    """Tell of ``error`` and leave the process without touching another collective."""
    code = 2 if isinstance(error, MegadsError) else 1
    if _is_lost_peer(error):
        # The rank that failed first tells the reason; let it speak before this one.
        time.sleep(1.0)
        _leave(f"[{where(info.rank)}] ended because another rank did\n", code)
    if code == 2 and info.rank != 0:
        # Most wrong inputs are found by every rank; one line is enough.
        time.sleep(1.0)
        if (run_dir / "outcome.json").exists():
            _leave("", code)
    if not (run_dir / "outcome.json").exists():
        write_outcome(run_dir, Outcome(code, f"{where(info.rank)}: {error}", 0))
    _leave(f"megads: {error}\n" if code == 2 else failure_text(info.rank, error), code)


def _leave(text: str, code: int) -> NoReturn:
    sys.stderr.write(text)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


def _is_lost_peer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEER)


def write_outcome(run_dir: Path, outcome: Outcome) -> None:
    """Write ``outcome.json`` whole or not at all."""
    path = run_dir / "outcome.json"
    temporary = path.with_name(f"outcome.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(vars(outcome)) + "\n", encoding="utf8")
    os.replace(temporary, path)
