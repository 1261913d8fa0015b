"""The time of a step: its lines add up, and every one has a kind."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.place import place_of
from megads.plan.time.step import step_time


def _run(preset="7B", ranks=1, **env):
    resolved = resolve(preset, env=env, machine="generic")
    return derive(resolved, num_hosts=-(-ranks // 8), ranks_per_host=min(ranks, 8), vocab_size=32_000).run


def test_lines_add_up_and_every_kind_has_a_share():
    run = _run(ranks=16, TP="2", PP="2", GRAD_ACC_STEPS="4", NLAYERS="4")
    found = step_time(run, 16, place_of("h100"))
    kinds = ("compute", "memory", "communication", "idle", "host")
    assert sum(found.share(kind) for kind in kinds) == pytest.approx(1)
    assert all(found.share(kind) > 0 for kind in kinds)
    assert found.tokens_per_s == pytest.approx(found.tokens / 16 / found.step_s)
    assert found.longest()[0].seconds == max(line.seconds for line in found.lines if line.cure)
