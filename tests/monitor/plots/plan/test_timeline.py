"""The timeline of a plan: a simulated step whose times add up to what is predicted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from megads.config.stages import virtual_stages
from megads.monitor.plots.plan.timeline import MOST_BLOCKS, timeline_of
from megads.plan.pipeline import uneven_idle
from megads.plan.places.place import Level
from tests.monitor.plots.plan.made import searched

CASES = [
    {"PP": "4", "PIPELINE_SCHEDULE": "1f1b"},
    {"PP": "4", "VIRTUAL_STAGES": "2"},
    {"PP": "8", "PIPELINE_SCHEDULE": "zb-h1", "GLOBAL_BATCH": "300"},
]


def _of(env):
    found = searched(**env)
    return *found.best[0].timed(), found.ask.place


@pytest.mark.parametrize("env", CASES, ids=str)
def test_a_step_is_as_long_as_predicted(env):
    run, _, time, place = _of(env)
    found = timeline_of(run, time, place)
    assert found.step_s == pytest.approx(time.step_s, rel=0.1)  # one way to count what waits, another for messages
    assert found.predicted_s == time.step_s
    assert found.of_micro_batches == run.train.grad_acc_steps
    assert found.length_s <= found.step_s * (1 + 1e-9)


@pytest.mark.parametrize("env", CASES, ids=str)
def test_stages_wait_as_the_banner_says_where_messages_take_no_time(env):
    run, _, time, place = _of(env)
    fast = replace(place, levels=(Level(0, 1e15, 0.0, "nothing"),))
    assert timeline_of(run, time, fast).idle == pytest.approx(uneven_idle(run), rel=1e-6)
    assert timeline_of(run, time, place).idle > uneven_idle(run)


@pytest.mark.parametrize("env", CASES, ids=str)
def test_a_stage_does_all_and_one_thing_at_a_time(env):
    run, _, time, place = _of(env)
    found = timeline_of(run, time, place)
    kinds = "FBW" if run.parallel.pipeline_schedule == "zb-h1" else "FB"
    passes = {
        (kind, each, chunk)
        for kind in kinds
        for each in range(found.micro_batches)
        for chunk in range(virtual_stages(run))
    }
    for row in found.stages:
        done = [(block.kind, block.micro_batch, block.chunk) for block in row if block.micro_batch >= 0]
        assert len(done) == len(passes)
        assert set(done) == passes
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(row))
        assert row[-1].kind == "optimizer"
        assert 0 < row[-1].end_s <= found.length_s + 1e-9
    assert len(found.stages) == run.parallel.pipeline
    assert sum(map(len, found.stages)) < 1.2 * MOST_BLOCKS


def test_messages_between_hosts_take_longer():
    run, _, time, place = _of(CASES[0])
    ranks = time.world_size
    slow = Level(0, 1e-3, 0.0, "between hosts")
    inside = replace(place, levels=(Level(ranks, 1e6, 0.0, "inside a host"), slow))
    halves = replace(place, levels=(Level(ranks // 2, 1e6, 0.0, "inside a host"), slow))
    lengths = [timeline_of(run, time, each).length_s for each in (inside, halves, replace(place, levels=(slow,)))]
    assert lengths[0] < lengths[1] < lengths[2]  # no boundary, one of three, all


def test_no_pipeline_has_no_timeline():
    run, _, time, place = _of({"PP": "1"})
    assert timeline_of(run, time, place) is None
