"""Bandwidth of the device's memory, and between host and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from megads.bench.results import PartResult
from megads.bench.session import Bench, MeasurementFailed

BYTES = {"tiny": 2**20, "cpu": 2**26, "device": 2**30}
"""Of a buffer: far more than caches hold, except in the tiny form."""


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every pattern; the rate is that of the slowest rank, in GB/s read and written."""
    size = BYTES["tiny" if bench.is_tiny else "cpu" if bench.is_cpu else "device"]
    for name, moved, make in patterns(bench, size):
        if not bench.goes_on():
            result.status = "partial"
            result.notes.append(f"{name} dropped: no time left")
            continue
        bench.notify(name)

        def run(make: Callable[[], Callable[[], object]] = make) -> float:
            return bench.seconds(make())

        try:
            seconds = max(bench.on_all(run))
        except MeasurementFailed as problem:
            result.notes.append(f"{name}: {problem}")
            continue
        result.rows.append({"pattern": name, "bytes": size, "gb_per_s": moved * size / seconds / 1e9})
    if bench.is_tiny:
        result.notes.append("buffers of 1 MiB: the rates are of caches")


def patterns(bench: Bench, size: int) -> Iterator[tuple[str, int, Callable[[], Callable[[], object]]]]:
    """Yield name, buffers moved, and what makes the call; its buffers are made when it runs, and freed after it."""
    device, length = bench.device, size // 4

    def new(where: torch.device = device, *, is_pinned: bool = False) -> torch.Tensor:
        return torch.ones(length, device=where, pin_memory=is_pinned)

    def fill() -> Callable[[], object]:
        x = new()
        return x.zero_

    def copy() -> Callable[[], object]:
        x, y = new(), new()
        return lambda: y.copy_(x)

    def add() -> Callable[[], object]:
        x, y, z = new(), new(), new()
        return lambda: torch.add(x, y, out=z)

    yield "fill", 1, fill
    yield "copy", 2, copy
    yield "add (triad)", 3, add
    if bench.is_cpu:
        return
    host = torch.device("cpu")

    def transfer(*, is_upload: bool, is_pinned: bool) -> Callable[[], object]:
        x, y = new(), new(host, is_pinned=is_pinned)
        source, target = (y, x) if is_upload else (x, y)
        return lambda: target.copy_(source, non_blocking=is_pinned)

    for is_upload in (True, False):
        for is_pinned in (True, False):
            direction = "host to device" if is_upload else "device to host"

            def make(is_upload: bool = is_upload, is_pinned: bool = is_pinned) -> Callable[[], object]:
                return transfer(is_upload=is_upload, is_pinned=is_pinned)

            yield f"{direction}, {'pinned' if is_pinned else 'pageable'}", 1, make
