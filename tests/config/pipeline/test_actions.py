"""The schedules' actions, next to those that torch's schedules generate."""

from __future__ import annotations

import pytest

from megads.config.pipeline.actions import SCHEDULES, Action, actions, groups_of, in_flight, needs, problem_of
from megads.config.pipeline.clock import simulate
from megads.errors import ConfigError

SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 3, 4, 5, 7, 8, 11, 16)]


def _chunks(schedule: str) -> tuple[int, ...]:
    return (2, 3, 4) if schedule == "interleaved" else (1,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_does_each_pass_once_and_never_blocks(schedule):
    for stages, micro_batches in SIZES:
        for chunks in _chunks(schedule):
            found = actions(schedule, stages, chunks, micro_batches)
            assert problem_of(found, chunks, micro_batches) == "", (stages, chunks, micro_batches)
            assert all(any(each.kind == "W" for each in order) == (schedule == "zb-h1") for order in found)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_holds_what_the_simulated_clock_shows(schedule):
    for stages, micro_batches in SIZES:
        for chunks in _chunks(schedule):
            timeline = simulate(actions(schedule, stages, chunks, micro_batches))
            for stage in range(stages):
                held = in_flight(schedule, stages, chunks, micro_batches, stage)
                most = max(sum(forward) + sum(waiting) for forward, waiting in held)
                assert most == timeline.most_in_flight(stage)


def test_how_many_are_in_flight():
    """1F1B: p - s micro-batches; zb-h1: p at most; interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunks."""
    for stage in range(4):
        plain, waits = (simulate(actions(each, 4, 1, 12)).most_in_flight(stage) for each in ("1f1b", "zb-h1"))
        assert (plain, waits) == (4 - stage, 4)
        assert simulate(actions("interleaved", 4, 3, 12)).most_in_flight(stage) == 2 * (3 - stage) + 2 * 4 + 1


def _of_torch(kind: str, stages: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """Return the order of a schedule of torch.distributed.pipelining."""
    from torch.distributed.pipelining import schedules

    torch_class = getattr(schedules, kind)
    found = []
    for rank in range(stages):
        peer = object.__new__(torch_class)
        rounds = max(1, micro_batches // stages)
        vars(peer).update(pp_group_size=stages, n_local_stages=chunks, _n_microbatches=micro_batches)
        vars(peer).update(number_of_rounds=rounds, microbatches_per_round=micro_batches // rounds)
        kinds = schedules._ComputationType
        letters = {
            kinds.FORWARD: "F",
            kinds.FULL_BACKWARD: "B",
            kinds.BACKWARD_INPUT: "B",
            kinds.BACKWARD_WEIGHT: "W",
        }
        order = [each for each in peer._calculate_single_rank_operations(rank) if each is not None]
        found.append(
            [Action(letters[op.computation_type], op.stage_index // stages, op.microbatch_index) for op in order]
        )
    return found


@pytest.mark.parametrize(
    ("schedule", "peer", "chunks"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", 2),
        ("interleaved", "ScheduleInterleaved1F1B", 3),
        ("zb-h1", "ScheduleInterleavedZeroBubble", 1),
    ],
)
def test_torchs_schedules_have_the_same_order(schedule, peer, chunks):
    """Where torch knows one: the micro-batches fall into equal rounds."""
    for stages, micro_batches in [(2, 2), (2, 6), (3, 9), (4, 4), (4, 8), (4, 10), (4, 3), (8, 16)]:
        theirs = _of_torch(peer, stages, chunks, micro_batches)
        assert actions(schedule, stages, chunks, micro_batches) == theirs, (stages, micro_batches)


def test_megatrons_order():
    """Stage 0 of two, two chunks, four micro-batches: arXiv 2104.04473, figure 4."""
    order = " ".join(map(str, actions("interleaved", 2, 2, 4)[0]))
    assert order == "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"


def test_groups_are_even_and_the_larger_ones_first():
    assert [len(group) for group in groups_of(11, 4)] == [6, 5]
    assert groups_of(3, 4) == [range(3)]
    assert [each for group in groups_of(11, 4) for each in group] == list(range(11))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpipe", 2, 1, 2), "'gpipe' is not one of 1f1b, interleaved, zb-h1"),
        (("1f1b", 2, 2, 2), "1f1b has one chunk per stage, not 2"),
        (("zb-h1", 2, 2, 2), "zb-h1 has one chunk per stage, not 2"),
        (("interleaved", 2, 1, 2), "interleaved has 2 or more chunks per stage, not 1"),
        (("1f1b", 2, 1, 0), "0 micro-batches; each must be 1 or more"),
    ],
)
def test_what_is_not_a_schedule(arguments, message):
    with pytest.raises(ConfigError, match=message):
        actions(*arguments)


def _swap(order: list[Action], first: int, second: int) -> list[Action]:
    order = list(order)
    order[first], order[second] = order[second], order[first]
    return order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: [found[0][:-1], found[1]], "stage 0: B of 3 chunks of micro-batches, not of each of 4"),
        (lambda found: [found[0], [*found[1], found[1][-1]]], "stage 1: B of 5 chunks"),
        (lambda found: [found[0], _swap(found[1], 0, 1)], r"stage 1: B0\.0 before its F"),
        (lambda found: [[*found[0], Action("W", 0, 0)], found[1]], "stage 0: W of 1 chunks"),
        # Stage 0 begins with micro-batch 1, stage 1 does all of micro-batch 0 first.
        (
            lambda found: [
                [Action(kind, 0, each) for each in (3, 2, 1, 0) for kind in "FB"],
                [Action(kind, 0, each) for each in (0, 1, 2, 3) for kind in "FB"],
            ],
            r"stages wait for each other at B3\.0 of stage 0, F0\.0 of stage 1",
        ),
    ],
)
def test_planted_mistakes_are_found(change, message):
    import re

    assert re.match(message, problem_of(change(actions("1f1b", 2, 1, 4)), 1, 4))


def test_what_an_action_needs():
    assert needs(Action("F", 0, 3), 0, 4, 2) is None
    assert needs(Action("F", 1, 3), 0, 4, 2) == (3, Action("F", 0, 3))
    assert needs(Action("B", 0, 3), 3, 4, 2) == (0, Action("B", 1, 3))
    assert needs(Action("B", 1, 3), 3, 4, 2) is None
    assert needs(Action("W", 1, 3), 2, 4, 2) is None
