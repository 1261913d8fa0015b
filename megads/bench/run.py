"""A benchmark on this rank: joins the others, runs the parts, keeps the time, writes what there is after each part."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from megads.bench.budget import Budget
from megads.bench.facts import describe
from megads.bench.models import settings
from megads.bench.parts import Part
from megads.bench.results import PartResult, Report
from megads.bench.session import Bench, MeasurementFailed, first_line
from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo
from megads.comm.groups import join_ranks
from megads.comm.leaving import disconnect
from megads.comm.messages import all_gather_values, broadcast_value
from megads.config.schema import RunConfig
from megads.errors import EXIT_DONE, EXIT_FAILED, MegadsError
from megads.plan.places.peaks import peak_tflops

USED = 0.92
"""Of the limit that parts share; the rest is for what a part cannot stop in the middle."""

LEAST_S = 1.0
"""A part does not begin with less time than this."""


@dataclass(frozen=True)
class Wish:
    """What was asked for.

    Attributes:
        limit_s: of everything, after which the process ends with what there is.
        root: the checkout.
    """

    parts: tuple[Part, ...]
    limit_s: float
    root: Path
    machine: str = ""
    is_tiny: bool = False


class Output(Protocol):
    """Where rank 0 shows and keeps what there is."""

    def begin(self, report: Report) -> None:
        """Show where this runs."""

    def progress(self, text: str, done: float) -> None:
        """Show what is measured now, and the share of the time that has been used."""

    def part(self, result: PartResult) -> None:
        """Show a part that has ended."""

    def keep(self, report: Report) -> None:
        """Write the report as it is now."""


def run_bench(wish: Wish, info: RankInfo, env: Mapping[str, str], output: Output) -> int:
    """Measure on this rank, and return the exit code: 1 where a number is wrong or a part failed. Collective."""
    started = time.monotonic()
    bench = join(wish, info, env)
    report = Report(describe(bench, wish.machine))
    if info.rank == 0:
        output.begin(report)
    watch = Deadline(wish.limit_s - (time.monotonic() - started), report, output, info.rank)
    with watch:
        for part in wish.parts:
            _run_part(part, bench, report, output)
        report.is_complete = True
    if info.rank == 0:
        output.keep(report)
    return EXIT_FAILED if report.wrong or report.failed else EXIT_DONE


def join(wish: Wish, info: RankInfo, env: Mapping[str, str]) -> Bench:
    """Meet the other ranks. Collective."""
    budget = Budget(USED * wish.limit_s, {part.name: part.weight for part in wish.parts})
    run: RunConfig = settings(wish.root, info.world_size)
    row, device, groups = join_ranks(run, info, env, wish.limit_s)
    hosts = tuple(all_gather_values(this_host()))
    peaks = partial(peak_tflops, row.device_name(device), env=env, units=row.units(device))
    return Bench(row, device, groups, hosts, budget, wish.root, wish.is_tiny, peaks=lambda dtype: peaks(dtype))


def _run_part(part: Part, bench: Bench, report: Report, output: Output) -> None:
    """Run one part and add its result to the report. Collective."""
    result = part.result()
    report.parts.append(result)
    is_first = bench.groups.rank == 0
    if not broadcast_value(bench.budget.left() > LEAST_S):
        result.status = "dropped"
        result.notes.append("no time left; pass --minutes or --parts")
    else:
        used = 1 - bench.budget.left() / bench.budget.total_s
        if is_first:
            output.progress(part.name, used)
        bench.notify = lambda text: output.progress(f"{part.name}: {text}", used) if is_first else None
        bench.budget.begin(part.name)
        started = time.monotonic()
        try:
            part.measure(bench, result)
        except MeasurementFailed as problem:
            result.status = "failed"
            result.notes.append(str(problem))
        except (RuntimeError, MegadsError) as problem:
            # The others are in the middle of the part, and would wait for this rank.
            if bench.world_size > 1:
                raise
            result.status = "failed"
            result.notes.append(first_line(problem))
        result.seconds = time.monotonic() - started
        if result.status == "running":
            result.status = "done"
        if result.wrong:
            result.status = "wrong"
    if is_first:
        output.part(result)
        output.keep(report)


def leave(code: int) -> None:
    """End this rank with ``code`` when the others have ended their work, too."""
    is_alone = not dist.is_initialized() or dist.get_world_size() == 1
    why = disconnect()
    if why:
        sys.stderr.write(f"megads: bench: {why}\n")
    if is_alone and not why:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the groups may still run, and an interpreter that ends under them aborts


class Deadline:
    """Ends the process at the limit, with what there is: a part may wait for a rank that never answers.

    Args:
        seconds: from now on.
        leave: ends the process.
    """

    def __init__(
        self, seconds: float, report: Report, output: Output, rank: int, leave: Callable[[int], object] = os._exit
    ):
        self.report, self.output, self.rank, self.leave = report, output, rank, leave
        self._timer = threading.Timer(max(0.0, seconds) + (0 if rank == 0 else 2), self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *problem: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        if self.rank == 0:
            for part in self.report.parts:
                if part.status == "running":
                    part.notes.append("ended at the time limit; a rank, a kernel or a collective did not answer")
                    part.status = "failed"
                    self.output.part(part)
            self.output.keep(self.report)
        self.leave(EXIT_FAILED)
