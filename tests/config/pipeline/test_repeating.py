"""Steps of many micro-batches, shortened: equal to the whole simulation, exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from megads.config.pipeline import repeating
from megads.config.pipeline.actions import SCHEDULES, actions
from megads.config.pipeline.clock import Costs, Number, Wire, simulate
from megads.config.pipeline.idle import idle_time
from megads.config.pipeline.repeating import StageEnd, Window, ends_of, stage_ends
from tests.pairs import SEED


def drawn_costs(pick: random.Random, stages: int, chunks: int) -> Costs:
    """Return times of every chunk and wire, as fractions; stages alike in half of the cases."""

    def number(most: int) -> Fraction:
        return Fraction(pick.randint(0 if most < 9 else 1, most), pick.randint(1, 3))

    same = [tuple(number(12) for _ in range(3)) for _ in range(chunks)]
    passes = tuple(
        tuple(same[chunk] if pick.random() < 0.5 else tuple(number(12) for _ in range(3)) for chunk in range(chunks))
        for _ in range(stages)
    )
    wires = tuple(Wire(number(5), number(3)) for _ in range(stages * chunks - 1))
    return Costs(passes=passes, wires=wires if pick.random() < 0.7 else (), is_blocking=pick.random() < 0.3)


@pytest.fixture
def simulated(monkeypatch):
    """Count the micro-batches that are simulated."""
    counts: list[int] = []

    def counting(orders, costs):
        counts.append(max(action.micro_batch for action in orders[0]) + 1)
        return simulate(orders, costs)

    monkeypatch.setattr(repeating, "simulate", counting)
    return counts


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_shortened_step_is_that_of_all_its_micro_batches(schedule: str, simulated: list[int]):
    pick = random.Random(f"{SEED} {schedule}")
    shorter = 0
    for _ in range(12):
        stages, chunks = pick.randint(1, 6), pick.randint(2, 3) if schedule == "interleaved" else 1
        micro_batches = pick.randint(30, 120)
        costs = drawn_costs(pick, stages, chunks)
        found = ends_of(schedule, stages, chunks, micro_batches, costs)
        assert found == stage_ends(simulate(actions(schedule, stages, chunks, micro_batches), costs)), costs
        shorter += max(simulated) < micro_batches
        simulated.clear()
    assert shorter >= 6


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_thousands_of_micro_batches_by_the_closed_formula(schedule: str, simulated: list[int]):
    chunks = 4 if schedule == "interleaved" else 1
    costs = Costs(Fraction(7, 3), Fraction(19, 7), Fraction(2))
    for micro_batches in (16 * 512, 16 * 512 + 1):
        each = ends_of(schedule, 16, chunks, micro_batches, costs)
        length = max(stage.end for stage in each)
        idle = idle_time(schedule, 16, chunks, micro_batches, costs)
        assert {length - stage.busy for stage in each} == {idle}
        assert max(simulated) < 200


def test_a_moment_of_two_stages_by_hand():
    """F 1, B 2, W 0 and messages of 1.

    Stage 0: F0 0-1, F1 1-2, B0 6-8, B1 9-11. Stage 1: F0 2-3, B0 3-5, F1 5-6, B1 6-8. Of further micro-batches two take
    8: F of stage 0, a message, F and B of stage 1, a message, B of stage 0.
    """
    costs = Costs(1, 2, 0, message=1)
    length: dict[int, Number] = {
        count: max(each.end for each in ends_of("1f1b", 2, 1, count, costs)) for count in (2, 3, 1000, 1002, 1003)
    }
    assert length[2] == 11
    assert length[1002] - length[1000] == 8
    assert length[1003] - length[1002] == length[3] - length[2]


def test_what_does_not_repeat_continues_as_before_where_it_may(simulated: list[int]):
    """Two stages that are nearly the slowest need hundreds of rounds to settle."""
    passes = tuple(((1.0, 2.0 + (stage == 2) + (stage == 6) * 0.999, 0.0),) for stage in range(8))
    costs = Costs(passes=passes, message=0.05)
    whole = ends_of("1f1b", 8, 1, 400, costs)
    assert max(simulated) == 400
    simulated.clear()
    short = ends_of("1f1b", 8, 1, 400, costs, most=500)
    assert max(simulated) < 100
    for a, b in zip(whole, short, strict=True):
        assert (a.busy, a.end) == (pytest.approx(b.busy, rel=1e-9), pytest.approx(b.end, rel=1e-3))


def test_floats_are_rounded_once():
    pick = random.Random(f"{SEED} floats")
    for _ in range(5):
        exact = drawn_costs(pick, 4, 2)
        rough = Costs(
            passes=tuple(tuple(tuple(float(x) / 7e3 for x in chunk) for chunk in row) for row in exact.passes),
            wires=tuple(Wire(float(a) / 7e3, float(b) / 7e3) for a, b in exact.wires),
            is_blocking=exact.is_blocking,
        )
        found, expected = (ends_of("interleaved", 4, 2, 64, costs) for costs in (rough, exact))
        for a, b in zip(found, expected, strict=True):
            assert (a.busy, a.end) == (pytest.approx(float(b.busy) / 7e3, rel=1e-9), pytest.approx(float(b.end) / 7e3))
            assert isinstance(a.end, float)


def test_the_last_gradients_of_every_chunk():
    assert stage_ends(simulate(actions("interleaved", 1, 2, 2)))[0] == StageEnd(
        busy=12, last=(Window(10, 12), Window(8, 10))
    )
    waits = stage_ends(simulate(actions("zb-h1", 2, 1, 2)))
    assert [each.last for each in waits] == [(Window(6, 7),), (Window(6, 7),)]  # W, not B
