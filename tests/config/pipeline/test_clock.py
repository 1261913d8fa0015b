"""The simulated clock, by hand; with messages, within what they can take."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from megads.config.pipeline.actions import SCHEDULES, Action, actions
from megads.config.pipeline.clock import Costs, Sent, Wire, simulate
from megads.config.pipeline.idle import idle_time
from megads.config.pipeline.messages import Exchange, plan
from megads.errors import ConfigError
from tests.pairs import SEED


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


def test_messages_to_the_same_stage_leave_in_turn():
    """F of 1 and messages of 3 with a latency of 2: the second one waits for the first."""
    costs = Costs(1, 1, 1, wires=(Wire(3, 2),))
    timeline = simulate(actions("1f1b", 2, 1, 2), costs)
    assert timeline.sent[0] == (
        Sent(Action("F", 0, 0), 1, 1, 4, 6),
        Sent(Action("F", 0, 1), 1, 4, 7, 9),
    )
    assert _times(timeline, 1) == "F0:6-7 B0:7-9 F1:9-10 B1:10-12"
    assert _times(timeline, 0) == "F0:0-1 F1:1-2 B0:14-16 B1:17-19"


def test_a_stage_that_blocks_waits_until_its_message_has_left():
    costs = Costs(1, 1, 1, wires=(Wire(3, 2),), is_blocking=True)
    timeline = simulate(actions("1f1b", 2, 1, 2), costs)
    assert _times(timeline, 0) == "F0:0-1 F1:4-5 B0:14-16 B1:20-22"
    assert _times(timeline, 1) == "F0:6-7 B0:7-9 F1:12-13 B1:13-15"


def _drawn(schedule: str):
    """Yield sizes and costs with messages."""
    pick = random.Random(f"{SEED} {schedule} clock")
    for _ in range(25):
        chunks = pick.randint(2, 4) if schedule == "interleaved" else 1
        stages, micro_batches = pick.randint(1, 6), pick.randint(1, 14)
        wires = tuple(
            Wire(Fraction(pick.randint(0, 9), 4), Fraction(pick.randint(0, 9), 5)) for _ in range(stages * chunks - 1)
        )
        times = (Fraction(pick.randint(1, 12), pick.randint(1, 5)) for _ in range(3))
        yield (schedule, stages, chunks, micro_batches), Costs(*times, wires=wires), pick


def _total(timeline) -> Fraction:
    return sum((each.end - each.start for stage in timeline.sent for each in stage), Fraction(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_messages_lengthen_a_step_by_no_more_than_all_of_them(schedule: str):
    for sizes, costs, _ in _drawn(schedule):
        orders = actions(*sizes)
        without = simulate(orders, replace(costs, wires=()))
        timeline, blocking = simulate(orders, costs), simulate(orders, replace(costs, is_blocking=True))
        assert without.length - without.busy(0) == idle_time(*sizes, replace(costs, wires=()))
        assert without.length <= timeline.length <= blocking.length
        # A link that is busy delays a message by those before it, so each second of a message counts once.
        assert timeline.length <= without.length + _total(timeline)
        once = sum((wire.seconds + wire.latency for wire in costs.wires), Fraction(0))
        first = sizes[1] * sizes[2] * (costs.forward + costs.backward + costs.weight * (schedule != "zb-h1"))
        assert timeline.length >= first + 2 * once * (sizes[1] > 1)  # of one micro-batch there and back
        assert [timeline.busy(stage) for stage in range(sizes[1])] == [without.busy(0)] * sizes[1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_faster_message_or_pass_makes_a_step_longer(schedule: str):
    for sizes, costs, pick in _drawn(schedule):
        orders = actions(*sizes)
        length = simulate(orders, costs).length
        if costs.wires:
            at = pick.randrange(len(costs.wires))
            seconds, latency = costs.wires[at]
            for faster in (Wire(seconds / 2, latency), Wire(seconds, latency / 3)):
                wires = (*costs.wires[:at], faster, *costs.wires[at + 1 :])
                assert simulate(orders, replace(costs, wires=wires)).length <= length
        for name in ("forward", "backward", "weight"):
            less = replace(costs, **{name: getattr(costs, name) / 2})
            assert simulate(orders, less).length <= length


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_micro_batch_takes_its_passes_and_its_messages(schedule: str):
    """The closed form: p v (F + B + W) and 2 (p v - 1) messages; the weights of zb-h1 delay no other stage."""
    for (_, stages, chunks, _), costs, _ in _drawn(schedule):
        timeline = simulate(actions(schedule, stages, chunks, 1), costs)
        passes = stages * chunks * (costs.forward + costs.backward + costs.weight * (schedule != "zb-h1"))
        messages = 2 * sum((wire.seconds + wire.latency for wire in costs.wires), Fraction(0)) * (stages > 1)
        assert timeline.length == passes + messages + costs.weight * (schedule == "zb-h1")


def test_every_message_of_the_plan_is_sent():
    for schedule, chunks in (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)):
        orders = actions(schedule, 4, chunks, 8)
        timeline = simulate(orders, Costs(wires=(Wire(1, 1),) * (4 * chunks - 1)))
        for stage, own in enumerate(plan(orders)):
            planned = [each for event in own if isinstance(event, Exchange) for each in event.sends]
            found = {
                (action.kind, action.chunk * 4 + stage + (1 if action.kind == "F" else -1), action.micro_batch, target)
                for action, target, *_ in timeline.sent[stage]
            }
            assert found == {(each.kind, each.virtual, each.micro_batch, each.peer) for each in planned}
            assert len(planned) == len(timeline.sent[stage])
