"""What is reported a device's memory, from facts as a device would give them."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest

from megads.device.vendor import DeviceMemory, resident_bytes
from megads.engine.base import MemoryUsage
from megads.plan.memory import Memory
from megads.train.profile.profile import MemoryFacts

GIB = 2**30
FACTS = MemoryFacts(
    held=MemoryUsage(weights=2 * GIB, gradients=4 * GIB, optimizer=12 * GIB, buffers=GIB),
    before=DeviceMemory(8 * GIB, 8 * GIB, 9 * GIB),
    peak=30 * GIB,
    at_update=10 * GIB,
    after=DeviceMemory(19 * GIB, 31 * GIB, 36 * GIB),
    resident=3 * GIB,
    set_up=2 * GIB,
    largest=(33 * GIB, 5),
    guess=Memory(2 * GIB, 4 * GIB, 12 * GIB, GIB, 15 * GIB, 3 * GIB, 0, GIB // 2),
)


def test_activations_are_the_peak_of_both_passes_without_what_was_held():
    assert FACTS.activations == 20 * GIB
    row = FACTS.row()
    assert row["memory/activations_peak_bytes"] == 20 * GIB
    assert row["memory/estimated_activations_bytes"] == 18 * GIB
    assert (row["memory/reserved_bytes"], row["memory/reserved_unused_bytes"]) == (36 * GIB, 5 * GIB)
    assert row["memory/largest_rank"] == 5
    assert FACTS.line() == (
        "rank 0 holds (estimated): weights 2 GiB (2 GiB), gradients 4 GiB (4 GiB), optimizer 12 GiB (12 GiB), "
        "buffers 1 GiB (1 GiB), activations at most 20 GiB (18 GiB), reserved 36 GiB, 5 GiB unused, process 3 GiB; "
        "most on rank 5, 33 GiB"
    )


def test_what_is_offloaded_is_told_of():
    assert "of that in host memory 12 GiB" in replace(FACTS, held=replace(FACTS.held, on_host=12 * GIB)).line()


def test_a_cpu_does_not_tell_what_activations_take():
    facts = replace(FACTS, before=None, after=None)
    assert facts.activations is None
    assert "activations" not in facts.line()
    assert not {"memory/activations_peak_bytes", "memory/reserved_bytes"} & set(facts.row())


def test_resident_memory_is_this_process_now():
    before = resident_bytes()
    # A mapping of its own: malloc may answer with memory that an earlier test freed and that is still resident.
    with mmap.mmap(-1, 64 * 2**20) as block:
        block[:] = b"x" * len(block)
        assert resident_bytes() - before == pytest.approx(len(block), rel=0.2)
