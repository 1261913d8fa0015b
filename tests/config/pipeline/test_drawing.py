"""The text drawing of a timeline."""

from __future__ import annotations

import pytest

from megads.config.pipeline.actions import SCHEDULES, actions
from megads.config.pipeline.clock import simulate
from megads.config.pipeline.drawing import WIDEST, drawing, drawing_of


def test_two_stages():
    assert drawing(simulate(actions("1f1b", 2, 1, 3))) == ["stage 0  01..aa2bb.cc", "stage 1  .0aa1bb2cc.."]


def test_weight_gradients_and_the_eleventh_micro_batch():
    title, *lines = drawing_of("zb-h1", 1, 1, 11)
    assert title.endswith("11 micro-batches: 0-9 forward, a-j backward of the inputs, w weight gradients, . idle")
    assert drawing_of("1f1b", 2, 1, 1)[0].startswith("pipeline  1f1b, 1 micro-batch: ")
    assert lines == ["  stage 0  " + "".join(f"{n % 10}{'abcdefghij'[n % 10]}w" for n in range(11))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_does_not_fit_a_line_is_drawn_with_fewer_micro_batches(schedule):
    chunks = 2 if schedule == "interleaved" else 1
    title, *lines = drawing_of(schedule, 4, chunks, 1000)
    shown = int(title.split()[2])
    assert shown % 4 == 0
    assert "of 1000 micro-batches" in title
    assert WIDEST - 12 * chunks - 11 < len(lines[0]) <= WIDEST + 11
    # What is idle at the ends of a line is as long as that of all micro-batches.
    assert {line.count(".") for line in lines} == {3 if schedule == "zb-h1" else 9}


def test_what_cannot_be_drawn_is_not():
    assert drawing_of("interleaved", 16, 8, 64) == []
    assert drawing_of("1f1b", 17, 1, 1) == []
