"""Where the allocated time of starts went: parts that add up, steps that were repeated, waits, hosts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from megads.monitor.report.shares import (
    LOST,
    OTHER,
    START,
    TRAINING,
    UNKNOWN,
    WAIT,
    efficiency,
    host_seconds,
    links_of,
)
from megads.monitor.run_state.attempts import Attempt

SPENT = {"set-up": 20.0, "step": 100.0, "validation": 5.0, "save": 10.0, "end": 1.0}
FIRST = Attempt("7", 0, 1000.0, 1140.0, ("a", "b"), 4, "", 1, 0, 50, 1, spent=SPENT)
SECOND = replace(FIRST, attempt=1, started=1150.0, ended=1300.0, began=40, reached=90, exit_code=75)
THIRD = replace(FIRST, job="8", started=5000.0, ended=5140.0, began=90, reached=100, exit_code=0, hosts=("c",))


def test_parts_of_a_chain():
    first, second, third = links_of([FIRST, SECOND, THIRD], now=9e9)
    # Ten of fifty steps were done twice.
    assert first.seconds == pytest.approx(
        {TRAINING: 80.0, LOST: 20.0, START: 20.0, "validation": 5.0, "saves": 10.0, OTHER: 5.0}
    )
    assert (first.kept, first.lost_steps) == (40, 10)
    assert (second.waited_s, second.queued_s, second.seconds[WAIT]) == (10.0, 0.0, 10.0)
    assert second.seconds[TRAINING] == 100.0
    assert (third.waited_s, third.queued_s) == (0.0, 3700.0)
    parts = host_seconds([first, second, third])
    assert parts[TRAINING] == 2 * 80 + 2 * 100 + 100
    assert sum(parts.values()) == 2 * 140 + 2 * 160 + 140
    assert efficiency([first, second, third]) == 460 / 740


def test_a_later_start_from_an_older_checkpoint_takes_steps_from_all_before_it():
    """A damaged checkpoint: the third start begins at 30, so that of the second nothing is left."""
    first, second, third = links_of([FIRST, SECOND, replace(THIRD, began=30)], now=9e9)
    assert (first.kept, second.kept, third.kept) == (30, 30, 100)
    assert (first.lost_steps, second.lost_steps, third.lost_steps) == (20, 50, 0)
    assert TRAINING not in second.seconds
    assert second.seconds[LOST] == 100.0


def test_a_start_that_recorded_nothing_counts_its_rows_as_trained_and_the_rest_as_unknown():
    old = replace(FIRST, spent={}, began=0, reached=4)
    (link,) = links_of([old], now=9e9, step_s={1: 10.0, 2: 10.0, 4: 5.0, 9: 99.0})
    assert link.seconds == {TRAINING: 25.0, UNKNOWN: 115.0}
    (link,) = links_of([old], now=9e9)
    assert link.seconds == {UNKNOWN: 140.0}
    assert efficiency([link]) == 0.0


def test_a_start_that_runs_ends_now_and_no_start_has_no_efficiency():
    running = replace(FIRST, ended=0.0, spent={"set-up": 20.0, "step": 70.0})
    (link,) = links_of([running], now=1100.0)
    assert link.ended == 1100.0
    assert link.seconds == {TRAINING: 70.0, START: 20.0, OTHER: 10.0}
    assert efficiency([]) is None
    assert efficiency(links_of([replace(running, started=1100.0, spent={})], now=1100.0)) is None


def test_a_start_that_did_no_whole_step_lost_what_it_tried():
    (link,) = links_of([replace(FIRST, began=7, reached=7)], now=9e9)
    assert TRAINING not in link.seconds
    assert link.seconds[LOST] == 100.0


def test_parts_always_add_up_to_the_allocated_time():
    """Also where clocks were set, starts overlap, and steps were repeated in any order; drawn chains."""
    draw = random.Random(3)
    for _ in range(300):
        attempts, at = [], 100.0
        for number in range(draw.randrange(1, 7)):
            began = draw.randrange(0, 50)
            wall = draw.choice([0.0, draw.uniform(0, 500)])
            spent = {name: draw.uniform(0, 120) for name in draw.sample(sorted(SPENT), draw.randrange(0, 5))}
            hosts = tuple("abcd"[: draw.randrange(0, 4)])
            job = draw.choice(["", "1", "2"])
            attempts.append(
                Attempt(job, number % 3, at, at + wall, hosts, 4, began=began, reached=began + draw.randrange(0, 30),
                        spent=spent)
            )  # fmt: skip
            at += draw.uniform(-20, 400) + wall
        links = links_of(attempts, now=at + 1000)
        for link in links:
            assert sum(link.seconds.values()) == pytest.approx(link.allocated_s, abs=1e-6)
            assert all(value > 0 for value in link.seconds.values())
        assert sum(host_seconds(links).values()) == pytest.approx(sum(each.hosts * each.allocated_s for each in links))
        share = efficiency(links)
        assert share is None or 0 <= share <= 1
