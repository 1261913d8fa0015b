"""What a piece of a program asked of the simulated device, and where the host waited for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.simgpu.module import NAME

ROOT = Path(__file__).resolve().parents[2]
NO_WAIT = ("upload_pinned", "upload_pageable", "download_pinned")
"""Copies that the host does not wait for; ``upload_pageable`` goes through a buffer of the driver's."""


@dataclass(frozen=True)
class Event:
    """One copy between host and device, or one wait of the host."""

    kind: str  # item, synchronize, upload, download, nonzero, ...; and those of NO_WAIT
    where: str  # file:line of the innermost Python outside of torch
    caller: str  # file:line of the innermost Python of megads/, "" if none

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}" + (f" for {self.caller}" if self.caller not in ("", self.where) else "")


@dataclass
class Counts:
    """What happened inside of :func:`counting`."""

    kernels: int = 0
    kernel_bytes: int = 0  # of operands and results
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0  # items included
    download_bytes: int = 0
    allocations: int = 0
    allocated: int = 0  # at the end
    peak: int = 0  # since the begin
    names: dict[str, int] = field(default_factory=dict)  # kernels, by name
    collectives: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def waits(self) -> list[Event]:
        """Where the host waited for the device."""
        return [event for event in self.events if event.kind not in NO_WAIT]

    def kinds(self) -> dict[str, int]:
        """Return how many events of each kind there were."""
        return dict(Counter(event.kind for event in self.events))


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what the ``with`` block asks of the device; the peak of the device's memory begins again."""
    from tests.simgpu.collectives import calls

    module: Any = torch.get_device_module(NAME)
    library = module.library
    counts = Counts()
    module.reset_peak_memory_stats()
    before, names, sent = library.counters(), library.names(), dict(calls)
    outer = library.on_event

    def on_event(kind: str, name: str) -> None:
        counts.events.append(Event(kind, *_places()))
        if outer is not None:
            outer(kind, name)

    library.on_event = on_event
    try:
        yield counts
    finally:
        library.on_event = outer
        after = library.counters()
        for name in (
            "kernels",
            "kernel_bytes",
            "uploads",
            "upload_bytes",
            "downloads",
            "download_bytes",
            "allocations",
        ):
            setattr(counts, name, after[name] - before[name])
        counts.allocated, counts.peak = after["allocated"], after["peak"]
        counts.names = _more(library.names(), names)
        counts.collectives = _more(calls, sent)


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    found = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in sorted(found.items()) if count}


def _places() -> tuple[str, str]:
    """Return file:line of the innermost Python outside of torch, and of the innermost of megads/."""
    where, frame = "", sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        ours = path.startswith(f"{ROOT}/megads/")
        if "/torch/" not in path and not path.startswith(f"{ROOT}/tests/simgpu/c") and "/simgpu/module" not in path:
            place = f"{_short(path)}:{frame.f_lineno}"
            where = where or place
            if ours:
                return where, place
        frame = frame.f_back  # type: ignore[assignment]
    return where or "autograd", ""


def _short(path: str) -> str:
    return path.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
