"""The simulated clock, by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from megads.config.pipeline.actions import Action, actions
from megads.config.pipeline.clock import Costs, simulate
from megads.errors import ConfigError


def _times(timeline, stage: int) -> str:
    return " ".join(
        f"{span.action.kind}{span.action.micro_batch}:{span.start}-{span.end}" for span in timeline.stages[stage]
    )


def test_two_stages_by_hand():
    timeline = simulate(actions("1f1b", 2, 1, 2), Costs(1, 1, 1))
    assert _times(timeline, 0) == "F0:0-1 F1:1-2 B0:4-6 B1:7-9"
    assert _times(timeline, 1) == "F0:1-2 B0:2-4 F1:4-5 B1:5-7"
    assert (timeline.length, timeline.busy(0)) == (9, 6)
    assert timeline.idle_share(0) == pytest.approx(1 / 3)


def test_messages_take_time_between_stages_only():
    timeline = simulate(actions("1f1b", 2, 1, 1), Costs(1, 1, 1, message=Fraction(1, 2)))
    assert _times(timeline, 0) == "F0:0-1 B0:5-7"
    alone = simulate(actions("1f1b", 1, 1, 2), Costs(1, 1, 1, message=5))
    assert alone.idle_share() == 0


def test_weight_gradients_fill_the_idle_time():
    timeline = simulate(actions("zb-h1", 2, 1, 2), Costs(1, 1, 1))
    assert _times(timeline, 0) == "F0:0-1 F1:1-2 B0:3-4 W0:4-5 B1:5-6 W1:6-7"
    assert _times(timeline, 1) == "F0:1-2 B0:2-3 F1:3-4 B1:4-5 W0:5-6 W1:6-7"


def test_chunks_of_unequal_work():
    timeline = simulate(actions("interleaved", 2, 2, 2), Costs(1, 1, 1, work=((1, 2), (3, 4))))
    spans = {(span.action.kind, span.action.chunk): span.end - span.start for span in timeline.stages[1]}
    assert spans == {("F", 0): 3, ("F", 1): 4, ("B", 0): 6, ("B", 1): 8}
    assert timeline.idle_share() == (timeline.idle_share(0) + timeline.idle_share(1)) / 2


def test_stages_that_wait_for_each_other():
    orders = [[Action("F", 0, 1), Action("B", 0, 1)], [Action("F", 0, 0), Action("B", 0, 0)]]
    with pytest.raises(ConfigError, match=r"wait for each other at B1\.0 of stage 0, F0\.0 of stage 1"):
        simulate(orders)
