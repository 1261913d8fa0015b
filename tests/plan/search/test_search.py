"""The layouts that are proposed: accepted by a launch, within the memory, and the fastest that there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.rules.checks import problem_of
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.plan.memory import estimate
from megads.plan.places.place import place_of
from megads.plan.search.ask import VOCABULARY, Ask
from megads.plan.search.points import points_of
from megads.plan.search.search import Degrees, search, search_for
from megads.plan.time.step import step_time

ROOT = Path(__file__).parents[3]
# Preset, settings of the user, place, hosts.
ASKED = [
    ("7B", {}, "h100", 1),
    ("7B", {"TP": "2", "RECOMPUTE": "full"}, "a100-40", 4),
    ("Llama-3-8B", {"GLOBAL_BATCH": "96", "SEQ": "4096"}, "pvc", 2),
    ("70B", {"PP": "4", "NUM_LAYERS_PER_VIRTUAL_STAGE": "5"}, "h100", 8),
    ("7B", {"ENGINE": "deepspeed"}, "h100", 2),
    ("bert-345M", {}, "h100", 2),
    ("t5-220M", {"ZERO_STAGE": "2"}, "mi250x", 1),
    ("retro-843M", {}, "h100", 1),
    ("2B", {"GRAD_ACC_STEPS": "4", "MICRO_BATCH": "2"}, "mi300x", 2),
]


def _asked(preset, env, hosts):
    return resolve(preset, env={**env, "NHOSTS": str(hosts)}, machine="generic", num_hosts=hosts)


@pytest.mark.parametrize(("preset", "env", "place", "hosts"), ASKED)
def test_what_is_proposed_is_what_a_launch_accepts_and_derives(preset, env, place, hosts):
    there = place_of(place)
    found = search(_asked(preset, env, hosts), there, hosts, top=8)
    assert found.best
    for each in found.best:
        again = _asked(preset, {**env, **each.settings}, hosts)
        vocab = again.run.model.vocab_size or VOCABULARY
        run = derive(again, num_hosts=hosts, ranks_per_host=there.per_host, vocab_size=vocab).run
        assert problem_of(run, hosts * there.per_host) is None
        assert run == each.run
        assert estimate(run, hosts * there.per_host) == each.memory
        assert each.memory.total <= 0.9 * there.memory_gib * 2**30
        assert step_time(run, hosts * there.per_host, there) == each.time
        kept = {name: value for name, value in env.items() if name in each.settings}
        assert not kept or kept == {"GLOBAL_BATCH": each.settings["GLOBAL_BATCH"]}


def test_the_fastest_comes_first_and_losers_are_slower_or_say_why():
    found = search(_asked("7B", {}, 2), place_of("h100"), 2)
    speeds = [each.time.tokens_per_s for each in found.best]
    assert speeds == sorted(speeds, reverse=True)
    assert all(each.problem or each.time.tokens_per_s <= speeds[-1] for each in found.losers)


def test_nothing_is_proposed_where_nothing_fits_and_stages_say_by_how_much():
    found = search(_asked("gpt-1T", {}, 1), place_of("a100-40"), 1)
    assert not found.best
    full = [each for each in found.losers if each.kind == "memory"]
    assert full
    assert all("too many" in each.problem for each in full)


def test_a_setting_that_no_layout_can_have_is_refused():
    with pytest.raises(ConfigError, match="HEADS=32 cannot be split over TP=3"):
        search(_asked("7B", {"TP": "3"}, 3), place_of("h100"), 3)


def _every(ask: Ask):
    """Yield what every candidate of an ask takes, by the formulas alone."""
    base = search_for(ask, 1).best[0].run
    for tensor in (1, 2, 4, 8):
        for pipeline in (1, 2, 4, 8):
            for sequence in (1, 2, 4, 8):
                if ask.world_size % (tensor * pipeline * sequence):
                    continue
                degrees = Degrees(tensor, pipeline, sequence, ask.world_size // (tensor * pipeline * sequence))
                for point in points_of(ask, base, degrees):
                    layout = ask.derived(point.change(ask, scatter=tensor > 1))
                    if layout.problem is None and estimate(layout.run, ask.world_size).total <= ask.limit_bytes:
                        yield ask.seconds(layout.run).tokens_per_s


def test_the_best_is_within_a_percent_of_the_best_of_all_candidates():
    env = {"NLAYERS": "8", "GLOBAL_BATCH": "32", "ZERO_STAGE": "1"}
    for preset, place, hosts in (("7B", "h100", 1), ("2B", "pvc", 1)):
        there = place_of(place)
        ask = Ask(_asked(preset, env, hosts), replace(there, per_host=8), hosts, 8)
        assert search_for(ask, 1).best[0].time.tokens_per_s >= 0.99 * max(_every(ask))


def test_under_zb_h1_recomputation_can_need_more_memory_than_none():
    held = {"TP": "1", "PP": "16", "SP": "1", "PIPELINE_SCHEDULE": "zb-h1", "MICRO_BATCH": "1", "ZERO_STAGE": "1"}
    held |= {"GLOBAL_BATCH": "1024", "VOCAB_SIZE": "1000"}
    asked = {each: _asked("7B", {**held, "RECOMPUTE": each}, 32) for each in ("none", "full")}
    runs = {name: derive(each, num_hosts=32, ranks_per_host=8, vocab_size=1000).run for name, each in asked.items()}
    none, full = (estimate(runs[name], 256).total for name in ("none", "full"))
    assert none < full
    there = place_of("h100")
    found = search(_asked("7B", held, 32), there, 32, max_memory=(none + full) / 2 / (there.memory_gib * 2**30))
    assert [each.settings["RECOMPUTE"] for each in found.best] == ["none"]
