"""The fullest pipeline stage, found among few of them, is the fullest of all."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.memory import estimate, stage_memories
from megads.plan.search.fits import fullest, fullest_of_all, of_first_stage

LAYOUTS = [
    ("70B", {"PP": "8", "RECOMPUTE": "full", "PIPELINE_SCHEDULE": "zb-h1", "GLOBAL_BATCH": "64"}),
    ("70B", {"PP": "8", "RECOMPUTE": "none", "PIPELINE_SCHEDULE": "zb-h1", "GLOBAL_BATCH": "16"}),
    ("70B", {"PP": "8", "VIRTUAL_STAGES": "5", "GLOBAL_BATCH": "64"}),
    ("7B", {"PP": "8", "VIRTUAL_STAGES": "3", "RECOMPUTE": "selective", "GLOBAL_BATCH": "32"}),
    ("gpt3-175B", {"TP": "2", "PP": "8", "PIPELINE_SPLIT": "ends", "GLOBAL_BATCH": "64"}),
    ("7B", {"PP": "3", "ZERO_STAGE": "3", "GLOBAL_BATCH": "48"}),
    ("t5-220M", {"PP": "4"}),
    ("7B", {"ZERO_STAGE": "2", "MICRO_BATCH": "4"}),
]


@pytest.mark.parametrize(("preset", "env"), LAYOUTS)
def test_the_fullest_of_few_stages_is_the_fullest_of_all(preset, env):
    ranks = 48 if env.get("PP") == "3" else 16
    resolved = resolve(preset, env=env, machine="generic")
    run = derive(resolved, num_hosts=ranks // 8, ranks_per_host=8, vocab_size=32_000).run
    memory, stage = fullest(run, ranks)
    assert memory == estimate(run, ranks)
    assert stage_memories(run, ranks)[stage].total == memory.total
    assert of_first_stage(run, ranks).total <= memory.total


def test_in_the_middle_of_a_zb_h1_pipeline_a_stage_can_be_fuller():
    env = {"PP": "16", "PIPELINE_SCHEDULE": "zb-h1", "RECOMPUTE": "full", "GLOBAL_BATCH": "1024", "MICRO_BATCH": "1"}
    run = derive(resolve("bert-345M", env=env, machine="generic"), num_hosts=32, ranks_per_host=8, vocab_size=0).run
    memory, stage = fullest_of_all(run, 256)
    assert memory == estimate(run, 256)
    assert 0 < stage < 15
    assert of_first_stage(run, 256).total < memory.total
    assert fullest(run, 256)[0].total <= memory.total
