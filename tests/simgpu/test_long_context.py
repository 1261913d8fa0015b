"""The table of docs/long_context.md is what estimate and tracker say: ``python -m tests.simgpu.long_context``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.layouts import Layout
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, have_device, run_on_device
from tests.simgpu.long_context import DEVICE_GIB, GIB, rows, tracked
from tests.simgpu.parity import engine_on, train

PAGE = Path(__file__).parents[2] / "docs/long_context.md"
TRACKED = 4
"""Number of the table's column."""


def _cells() -> list[list[str]]:
    _, _, behind = PAGE.read_text().partition("<!-- python -m tests.simgpu.long_context -->\n")
    lines = behind.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_is_that_of_the_estimate_and_all_of_it_fits():
    made = [[cell.strip() for cell in row.line(0).strip("|").split("|")] for row in rows()]
    for row, cells in zip(made, _cells(), strict=True):
        assert [*row[:TRACKED], *row[TRACKED + 1 :]] == [*cells[:TRACKED], *cells[TRACKED + 1 :]]
        assert float(cells[3]) < DEVICE_GIB
        assert float(cells[TRACKED]) < DEVICE_GIB
        assert float(cells[TRACKED]) == pytest.approx(float(cells[3]), rel=0.08)


def test_512_k_tokens_on_one_device_and_4_m_on_eight_are_in_the_table():
    assert {(row.devices, row.tokens // 1024) for row in rows()} >= {(1, 512), (8, 4096)}


def test_a_short_row_of_the_table_is_tracked_again():
    have_device()
    (size,) = tracked(rows()[:1])
    assert size / GIB == pytest.approx(float(_cells()[0][TRACKED]), abs=0.06)


PARTS = {"recompute.cpu_checkpointing": "1", "recompute.loss_chunk": "8", "recompute.mlp_tiles": "3"}


def _in_parts(kind: str) -> None:
    found, waits = [], []
    for parts in ({}, PARTS):
        given = {"engine.kind": kind, "recompute.granularity": "full", **parts}
        engine, run, groups = engine_on(DEVICE, Layout("llama"), **given)
        with counting() as counted:
            found.append(train(DEVICE, engine, run, groups, range(2)))
        waits.append(len(counted.waits))
        uploads = counted.kinds().get("upload_pinned", 0)
        assert (uploads > 0) == bool(parts)
    for whole, ours in zip(*found, strict=True):
        assert ours == pytest.approx(whole, rel=1e-6)
    assert waits[0] == waits[1], "parts wait for the host"


@pytest.mark.parametrize("kind", ["native", "deepspeed"])
def test_engines_train_the_same_in_parts_and_wait_for_the_host_as_often(kind):
    run_on_device(1, _in_parts, kind)
