"""What a launch writes into ``attempts.jsonl`` when ranks start."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from megads.config.schema import RunConfig
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise.end import remove_end
from megads.launch.supervise.progress import check_chain
from megads.monitor.run_state.attempts import Attempt, append_attempt


def attempt_of(run: RunConfig, allocation: Allocation, began: int = 0) -> Attempt:
    """Return a start of ``run`` that has not begun; ``began``: the iteration it resumes from."""
    axes = run.parallel
    return Attempt(
        allocation.job_id,
        hosts=allocation.hosts,
        num_ranks=allocation.world_size,
        layout=f"TP {axes.tensor} PP {axes.pipeline} SP {axes.sequence} DP {axes.data} ZERO {axes.zero_stage}",
        grad_acc_steps=run.train.grad_acc_steps,
        began=began,
    )


def first_attempt(run: RunConfig, allocation: Allocation, run_dir: Path, began: int) -> Attempt:
    """Return the first start of a job, which has not begun.

    Raises:
        LaunchError: the jobs of the chain before it got no further; see :func:`check_chain`.
    """
    check_chain(run_dir, allocation.job_id, began, run.launch.chain_failures)
    return attempt_of(run, allocation, began)


def begin_row(run_dir: Path, attempt: Attempt | None) -> Attempt | None:
    """Remove what an earlier start left of its end, note this one and return it; None: it has no row."""
    remove_end(run_dir)
    return attempt and note_start(run_dir, attempt)


def note_start(run_dir: Path, attempt: Attempt) -> Attempt:
    """Write the row of a start and return it."""
    started = replace(attempt, started=time.time(), reached=attempt.began)
    append_attempt(run_dir, started)
    return started
