"""What every part of a benchmark works with: the device, the other ranks, the time, and how a call is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from megads.bench.budget import Budget
from megads.comm.groups import Groups
from megads.comm.messages import all_gather_values, broadcast_value
from megads.device.vendor import Vendor
from megads.errors import MegadsError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Kept = TypeVar("Kept")

BATCH_S = 0.02
"""Calls are timed together until they take so long, so that neither clock nor launch counts."""

MOST_CALLS, BATCHES = 50, 3


class MeasurementFailed(MegadsError):
    """A measurement failed on some rank; the same on every rank."""


@dataclass
class Bench:
    """One rank of a benchmark. Methods that are collective say so."""

    vendor: Vendor
    device: torch.device
    groups: Groups  # of data-parallel ranks
    hosts: tuple[str, ...]  # of every rank
    budget: Budget
    root: Path  # the checkout
    is_tiny: bool = False
    peaks: Callable[[str], float | None] = lambda dtype: None  # TFLOP/s of this device, dense
    notify: Callable[[str], None] = lambda text: None  # what comes next

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def is_cpu(self) -> bool:
        """Whether there is no accelerator."""
        return self.device.type == "cpu"

    def goes_on(self, expected_s: float = 0.0) -> bool:
        """Return whether the part has time for something that takes ``expected_s``, by rank 0's clock. Collective."""
        return bool(broadcast_value(self.budget.allows(expected_s)))

    def on_all(self, call: Callable[[], Any]) -> list[Any]:
        """Return what ``call`` returns on every rank, by rank. Collective.

        Raises:
            MeasurementFailed: it failed on some rank; names the first.
        """
        value, error = None, ""
        try:
            value = call()
        except (RuntimeError, NotImplementedError, MegadsError) as problem:
            error = first_line(problem)
        found: list[Any] = all_gather_values([value, error])
        for rank, (_, each) in enumerate(found):
            if each:
                where = f"rank {rank}: " if self.world_size > 1 else ""
                raise MeasurementFailed(f"{where}{each}")
        return [each for each, _ in found]

    def on_all_kept(self, call: Callable[[], Kept]) -> Kept:
        """Return what ``call`` returns on this rank, once it has ended on every rank. Collective.

        Raises:
            MeasurementFailed: it failed on some rank.
        """
        kept: list[Kept] = []
        self.on_all(lambda: kept.append(call()))
        return kept[0]

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the seconds of one ``call`` on this rank: of the best of some batches of calls."""
        call()
        once = self._batch(call, 1)
        calls = max(1, min(MOST_CALLS, round(BATCH_S / max(once, 1e-7))))
        return min(self._batch(call, calls) for _ in range(1 if once > 1 else BATCHES))

    def _batch(self, call: Callable[[], Any], calls: int) -> float:
        timeline = self.vendor.timeline(self.device)
        timeline.begin()
        self.vendor.synchronize(self.device)
        marks = [timeline.mark()]
        for _ in range(calls):
            call()
        marks.append(timeline.mark())
        return float(timeline.seconds(marks)[0]) / calls


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
