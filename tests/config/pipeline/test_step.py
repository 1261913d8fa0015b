"""The end of a step: against pieces that are played one by one, and by hand."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from megads.config.pipeline.actions import SCHEDULES, actions
from megads.config.pipeline.clock import simulate
from megads.config.pipeline.repeating import StageEnd, Window, ends_of, stage_ends
from megads.config.pipeline.step import Closing, end_of_step
from tests.config.pipeline.test_repeating import drawn_costs
from tests.pairs import SEED


def test_by_hand():
    ends = [StageEnd(0, (Window(10, 14),)), StageEnd(0, (Window(6, 10),))]
    closings = [Closing(reduce=(8,), pieces=4, optimizer=3, gather=2)] * 2
    found = end_of_step(ends, closings, norm=1)
    assert found.reductions == ((Window(11, 19),), (Window(7, 15),))  # the first quarter of the gradients is there
    assert found.updates == (Window(20, 23), Window(20, 23))  # after the norm, which needs all
    assert (found.passes, found.exposed, found.length) == (14, 5, 25)
    alone = end_of_step(ends, closings)
    assert alone.updates == (Window(19, 22), Window(15, 18))
    after = end_of_step(ends, [Closing(reduce=(8,), is_hidden=False)] * 2)
    assert (after.reductions[0], after.length) == ((Window(14, 22),), 22)
    short = end_of_step(ends, [Closing(reduce=(1,), pieces=4)] * 2)
    assert short.length == Fraction(57, 4)  # the last piece begins when its gradients are there
    assert end_of_step(ends, [Closing(), Closing()]).length == 14


def _one_by_one(ends: list[StageEnd], closing: Closing) -> Fraction:
    """Return when the last piece of a stage is reduced."""
    latest = Fraction(0)
    for end in ends:
        free = Fraction(0)
        pieces = []
        for last, seconds in zip(end.last, closing.reduce, strict=True):
            for piece in range(closing.pieces):
                there = last.start + (last.end - last.start) * Fraction(piece + 1, closing.pieces)
                pieces.append((last.end, there, Fraction(seconds) / closing.pieces))
        for _, there, seconds in sorted(pieces):
            free = max(free, there) + seconds
        latest = max(latest, free)
    return latest


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pieces_are_reduced_as_soon_as_they_are_there(schedule: str):
    pick = random.Random(f"{SEED} {schedule} step")
    for _ in range(20):
        stages, chunks = pick.randint(1, 4), pick.randint(2, 3) if schedule == "interleaved" else 1
        costs = drawn_costs(pick, stages, chunks)
        ends = stage_ends(simulate(actions(schedule, stages, chunks, pick.randint(1, 9)), costs))
        reduce = tuple(Fraction(pick.randint(0, 60), pick.randint(1, 4)) for _ in range(chunks))
        closing = Closing(reduce, pick.randint(1, 5))
        found = end_of_step(ends, [closing] * stages)
        assert max(window.end for each in found.reductions for window in each) == _one_by_one(list(ends), closing)
        assert 0 <= found.exposed <= sum(reduce)
        whole = end_of_step(ends, [Closing(reduce, is_hidden=False)] * stages)
        assert found.length <= whole.length == max(end.end for end in ends) + sum(reduce)


def test_a_long_step_ends_as_a_simulated_one():
    costs = drawn_costs(random.Random(f"{SEED} long"), 4, 2)
    closings = [Closing((30, 40), 3, 5, 7)] * 4
    whole = stage_ends(simulate(actions("interleaved", 4, 2, 80), costs))
    assert end_of_step(ends_of("interleaved", 4, 2, 80, costs), closings, 2) == end_of_step(whole, closings, 2)
