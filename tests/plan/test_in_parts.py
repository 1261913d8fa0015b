"""LONG_CONTEXT=1: what is planned by memory, in which order, and what the user's settings keep it from."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config import engine_choice
from megads.config.derive import derive
from megads.config.rules.checks import problem_of
from megads.config.sources.resolve import Resolved, resolve
from megads.plan.in_parts import (
    CHUNK,
    ENGINE,
    KIND,
    ON_HOST,
    OPTIMIZER,
    TILES,
    ZERO,
    plan_line,
    plan_long_context,
    with_plan,
)
from megads.plan.memory import GIB, estimate

ROOT = Path(__file__).parents[2]
BASE = {"LONG_CONTEXT": "1", "SEQ": "131072"}


def _derived(ranks: int = 1, preset: str = "7B", machine: str = "generic", **env: str) -> Resolved:
    resolved = resolve(preset, env=BASE | env, machine=machine, root=ROOT)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=32_000)


def _plan(gib: float, ranks: int = 1, **env: str):
    return plan_long_context(_derived(ranks, **env), ranks, gib)


def test_nothing_is_planned_unless_asked_for():
    assert _plan(80, LONG_CONTEXT="0") == {}


def test_parts_are_added_in_the_order_of_their_cost_until_the_device_suffices(monkeypatch):
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", True)
    found, last = [], 10_000.0
    while True:
        changes = _plan(last)
        if found and len(changes) == len(found[-1]):
            break
        found.append(changes)
        planned = with_plan(_derived(), changes).run
        last = estimate(planned, 1).total / GIB - 0.01
    assert found == [
        {CHUNK: 4096},
        {CHUNK: 4096, KIND: "full"},
        {CHUNK: 4096, KIND: "full", TILES: 32},
        {CHUNK: 4096, KIND: "full", TILES: 32, ON_HOST: True},
        {CHUNK: 4096, KIND: "full", TILES: 32, ON_HOST: True, OPTIMIZER: "cpu", ZERO: 2},
        {CHUNK: 4096, KIND: "full", TILES: 32, ON_HOST: True, OPTIMIZER: "cpu", ZERO: 2, ENGINE: "deepspeed"},
    ]


def test_of_a_device_of_unknown_size_everything_but_the_optimizer_is_planned():
    assert [*_plan(0)] == [CHUNK, KIND, TILES, ON_HOST]


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        ({"LOSS_CHUNK": "100"}, CHUNK),
        ({"MLP_TILES": "2"}, TILES),
        ({"CPU_CHECKPOINTING": "1", "RECOMPUTE": "full"}, ON_HOST),
        ({"RECOMPUTE": "full"}, KIND),
        ({"OFFLOAD_OPTIMIZER": "cpu"}, OPTIMIZER),
        ({"ZERO_STAGE": "0"}, OPTIMIZER),
        ({"ZERO_STAGE": "1"}, OPTIMIZER),  # gradients would stay; the user's own stage is kept
    ],
)
def test_what_the_user_has_set_stays(env, missing):
    changes = _plan(1, **env)
    assert missing not in changes
    assert len(changes) >= 3


@pytest.mark.parametrize("stage", ["0", "1"])
def test_the_engine_changes_only_where_it_saves_memory_and_the_line_says_so(stage):
    changes = _plan(1, ZERO_STAGE=stage)
    assert ENGINE not in changes  # gradients stay on the device under either engine
    assert "ENGINE" not in plan_line(with_plan(_derived(ZERO_STAGE=stage), changes).run, 1, 1)
    changes = _plan(1)
    assert changes[ENGINE] == "deepspeed"
    planned, native = with_plan(_derived(), changes).run, with_plan(_derived(), {**changes, ENGINE: "native"}).run
    assert estimate(planned, 1).total < estimate(native, 1).total
    assert ", ENGINE=deepspeed: " in plan_line(planned, 1, 1)


def test_recomputation_that_the_user_turned_off_stays_off():
    changes = _plan(1, RECOMPUTE="none")
    assert KIND not in changes
    assert ON_HOST not in changes  # nothing that could go there is kept
    planned = with_plan(_derived(RECOMPUTE="none"), changes).run
    assert problem_of(planned, 1) is None


def test_a_cpu_has_nothing_to_move():
    changes = plan_long_context(_derived(machine="cpu"), 1, 1)
    assert [*changes] == [CHUNK, KIND, TILES]


def test_chunks_are_smaller_where_the_vocabulary_is_wide():
    assert _plan(1, VOCAB_SIZE="128256")[CHUNK] == 1280
    assert _plan(1, 4, VOCAB_SIZE="128256", TP="4")[CHUNK] == 4096
    assert _plan(1, VOCAB_SIZE="1000000")[CHUNK] == 512


def test_tiles_are_of_the_tokens_of_a_rank():
    assert _plan(1, 8, SP="8")[TILES] == 4
    assert TILES not in _plan(1, SEQ="4096")


@pytest.mark.parametrize("gib", [20, 40, 80, 200])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_plan_keeps_the_rules_and_says_what_it_needs(gib, ranks):
    derived = _derived(ranks)
    planned = with_plan(derived, plan_long_context(derived, ranks, gib))
    assert problem_of(planned.run, ranks) is None
    line = plan_line(planned.run, ranks, gib)
    assert line.startswith("LONG_CONTEXT: loss in chunks of 4096")
    assert line.endswith(f" of {gib} GiB per rank (estimated)")
    assert all(str(planned.origins[name]) == "derived LONG_CONTEXT" for name in (CHUNK,))


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"RECOMPUTE": "selective"}, "LONG_CONTEXT=1 recomputes whole layers where memory is short, and RECOMPUTE=sel"),
        (
            {"RECOMPUTE": "full", "RECOMPUTE_WITH": "deepspeed"},
            "LONG_CONTEXT=1 plans with torch's recomputation, and RECOMPUTE_WITH=deepspeed",
        ),
    ],
)
def test_settings_that_contradict_the_plan_are_refused(env, told):
    problem = problem_of(_derived(**env).run, 1)
    assert problem is not None
    assert problem.text.startswith(told)
