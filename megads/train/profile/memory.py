"""What a rank's memory is used for, measured in the first step of a start, besides the estimate from before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from megads.config.estimate.memory import Memory, estimate
from megads.device.vendor import DeviceMemory, resident_bytes
from megads.engine.deepspeed.memory_usage import MemoryUsage, held, watch_updates
from megads.text.units import size
from megads.train.setup import Training


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes of this rank.

    Attributes:
        held: after the step, but gradients as they were when the optimizer began.
        before: what the device's allocator had before the step; None: no device.
        peak: the most it had until the optimizer began.
        at_update: bytes on the device by kind at that time.
        after: what the allocator had after the step.
        resident: host memory after the step.
        set_up: host memory before it.
        largest: the most memory of any rank (``Vendor.memory_bytes``), and whose it is.
        guess: the estimate for the fullest pipeline stage.
    """

    held: MemoryUsage
    before: DeviceMemory | None
    peak: int
    at_update: int
    after: DeviceMemory | None
    resident: int
    set_up: int
    largest: tuple[int, int]
    guess: Memory

    @property
    def activations(self) -> int | None:
        """What forward and backward pass had besides what is held; None on a CPU, where nothing tells."""
        return max(0, self.peak - self.at_update) if self.after is not None else None

    def row(self) -> dict[str, int]:
        """Return the entries of a metrics row."""
        held, guess = self.held, self.guess
        row = {
            "weights": held.weights,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "buffers": held.buffers,
            "held_on_host": held.on_host,
            "host_resident": self.resident,
            "host_resident_before": self.set_up,
            "most_of_any_rank": self.largest[0],
            "estimated_weights": guess.weights,
            "estimated_gradients": guess.gradients,
            "estimated_optimizer": guess.optimizer,
            "estimated_buffers": guess.buffers,
            "estimated_activations": guess.activations + guess.logits,
            "estimated_total": guess.total,
        }
        if self.before is not None and self.after is not None and self.activations is not None:
            row |= {
                "activations_peak": self.activations,
                "allocated_before": self.before.allocated,
                "allocated": self.after.allocated,
                "allocated_peak": self.after.peak,
                "reserved": self.after.reserved,
                "reserved_unused": _unused(self.after),
            }
        return {
            **{f"memory/{name}_bytes": value for name, value in row.items()},
            "memory/largest_rank": self.largest[1],
        }

    def line(self) -> str:
        """Return the log's line."""
        held, guess = self.held, self.guess
        pairs = (
            ("weights", held.weights, guess.weights),
            ("gradients", held.gradients, guess.gradients),
            ("optimizer", held.optimizer, guess.optimizer),
            ("buffers", held.buffers, guess.buffers),
            ("activations at most", self.activations, guess.activations + guess.logits),
        )
        parts = [f"{name} {size(found)} ({size(guessed)})" for name, found, guessed in pairs if found is not None]
        if held.on_host:
            parts.append(f"of that in host memory {size(held.on_host)}")
        if self.after is not None:
            parts.append(f"reserved {size(self.after.reserved)}, {size(_unused(self.after))} unused")
        parts.append(f"process {size(self.resident)}")
        largest = f"most on rank {self.largest[1]}, {size(self.largest[0])}"
        return f"rank 0 holds (estimated): {', '.join(parts)}; {largest}"


def _unused(memory: DeviceMemory) -> int:
    """Return what the allocator holds beyond the most that tensors needed: fragments, or what others freed."""
    return max(0, memory.reserved - memory.peak)


@contextmanager
def measure_memory(training: Training) -> Iterator[Callable[[], MemoryFacts]]:
    """Measure the block, the first step of a start; yield what returns the facts behind it. Collective."""
    t, found = training, list[tuple[MemoryUsage, DeviceMemory | None]]()
    vendor, device, engine = t.vendor, t.device, t.engine
    facts: list[MemoryFacts] = []
    vendor.forget_peak(device)
    before, set_up = vendor.memory_now(device), resident_bytes()

    def look(*_: Any) -> None:
        found.append((held(engine), vendor.memory_now(device)))

    watch = watch_updates(engine, look)
    try:
        yield lambda: facts[0]
    finally:
        watch()
    after_step = held(engine)
    # A step that was skipped has no update to begin with.
    at_update, memory = found[0] if found else (after_step, vendor.memory_now(device))
    gradients = max((each.gradients for each, _ in found), default=after_step.gradients)
    facts.append(
        MemoryFacts(
            held=replace(after_step, gradients=gradients),
            before=before,
            peak=memory.peak if memory else 0,
            at_update=at_update.total - at_update.on_host,
            after=vendor.memory_now(device),
            resident=resident_bytes(),
            set_up=set_up,
            largest=_largest(t, vendor.memory_bytes(device)),
            guess=estimate(t.run, t.groups.grid.world_size),
        )
    )


def _largest(training: Training, mine: int) -> tuple[int, int]:
    """Return the most memory of any rank and whose it is. Collective."""
    groups = training.groups
    if groups.world is None:
        return mine, groups.rank
    everyone = torch.zeros(groups.grid.world_size, dtype=torch.int64, device=training.device)
    everyone[groups.rank] = mine
    dist.all_reduce(everyone, group=groups.world)
    rank = int(everyone.argmax())
    return int(everyone[rank]), rank
