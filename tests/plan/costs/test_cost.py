"""The queue, the jobs and the energy of a planned run."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.costs.cost import cost, queue_of
from megads.plan.places.place import place_of

ROOT = Path(__file__).parents[3]


def _run(**env):
    resolved = resolve("7B", env={"TRAIN_ITERS": "1000", **env}, machine="generic")
    return derive(resolved, num_hosts=256, ranks_per_host=12, vocab_size=32_000).run


def test_jobs_are_as_long_as_the_queue_or_the_user_allows():
    place = place_of("aurora", root=ROOT)
    queue = queue_of(place, 256)
    assert queue is not None
    assert queue.min_hosts <= 256 <= queue.max_hosts
    assert queue.hours == max(each.hours for each in place.queues if each.min_hosts <= 256 <= (each.max_hosts or 256))
    found = cost(_run(), place, 256, 3072, 3600.0)
    assert found.walltime_hours == queue.hours
    assert cost(_run(), place, 256, 3072, 3600.0, 1000.0).campaign.jobs < found.campaign.jobs


def test_a_place_without_queues_has_one_job_and_names_what_is_not_known():
    found = cost(_run(), place_of("h100"), 256, 3072, 1.0)
    assert found.queue is None
    assert found.campaign.jobs == 1
    assert "walltime_hours" in found.campaign.unknown
    assert found.campaign.days == pytest.approx(found.campaign.total_s / 86400)
