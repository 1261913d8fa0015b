"""Candidates of a layout: what the user gives stays, batches divide, schedules have the chunks they are for."""

from __future__ import annotations

import pytest

from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.search.ask import TOKENS_PER_STEP, Ask
from megads.plan.search.points import Degrees, points_of
from megads.plan.search.search import search_for


def _ask(hosts=2, preset="7B", **env):
    resolved = resolve(preset, env=env, machine="generic", num_hosts=hosts)
    return Ask(resolved, place_of("h100"), hosts, 8)


def _points(ask, *degrees):
    return list(points_of(ask, search_for(ask, 1, 1).best[0].run, Degrees(*degrees)))


def test_every_candidate_has_the_batch():
    ask = _ask(GLOBAL_BATCH="48")
    for point in _points(ask, 2, 2, 1, 4):
        assert point.micro * point.steps * 4 == 48
        assert (point.schedule == "interleaved") == (point.chunks > 1)


@pytest.mark.parametrize(
    ("env", "name", "values"),
    [
        ({"ZERO_STAGE": "0"}, "zero", {0}),
        ({"RECOMPUTE": "full"}, "recompute", {"full"}),
        ({"MICRO_BATCH": "3", "GLOBAL_BATCH": "48"}, "micro", {3}),
        ({"PIPELINE_SCHEDULE": "zb-h1"}, "schedule", {"zb-h1"}),
        ({"PIPELINE_SCHEDULE": "interleaved"}, "schedule", {"interleaved"}),
        ({}, "zero", {1, 2, 3}),
    ],
)
def test_what_the_user_gives_is_held(env, name, values):
    ask = _ask(**{"GLOBAL_BATCH": "48", "PP": "2", **env})
    assert {getattr(point, name) for point in _points(ask, 2, 2, 1, 4)} == values


def test_a_micro_batch_is_searched_where_only_the_accumulation_is_given():
    ask = _ask(GRAD_ACC_STEPS="300", PP="8", PIPELINE_SCHEDULE="zb-h1")
    assert search_for(ask, 1).best[0].run.train.grad_acc_steps == 300


def test_a_batch_that_nobody_gives_is_that_of_the_settings_cut_to_a_usual_one():
    assert _ask(2, "7B").batch == 16
    large = _ask(4096, "7B").batch
    assert large * 4096 <= TOKENS_PER_STEP < 2 * large * 4096
    assert _ask(GLOBAL_BATCH="100").batch == 100
    assert _ask(GRAD_ACC_STEPS="4").batch == 0
