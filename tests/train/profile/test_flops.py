"""What a rank's step computes, counted while it runs, against the formula: every layout, engine and recomputation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import NATIVE, STEPS, batches, make_engine, rate, settings
from tests.ranks import groups_of, run_ranks

FULL = {"recompute.granularity": "full"}
WITH_DEEPSPEED = {"recompute.engine": "deepspeed"}
CASES: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "one": ({"data": 1}, {}),
    "tp2": ({"tensor": 2}, {}),
    "tp2-scattered-full": ({"tensor": 2}, {"parallel.scatter_norms": "true", **FULL}),
    "sp2": ({"seq": 2}, {}),
    "pp2-chunks": ({"pipe": 2}, {**NATIVE, "model.num_layers": "4", "parallel.virtual_stages": "2"}),
    "pp2-zb-full": ({"pipe": 2}, {**NATIVE, "parallel.pipeline_schedule": "zb-h1", **FULL}),
    "sp2-selective-deepspeed": ({"seq": 2}, {"recompute.granularity": "selective", **WITH_DEEPSPEED}),
    "dp2-zero3-full": ({"data": 2}, {"parallel.zero_stage": "3", **FULL}),
    "tp2-full-deepspeed": ({"tensor": 2}, {**FULL, **WITH_DEEPSPEED}),
    "pp2-block": ({"pipe": 2}, {**FULL, "recompute.method": "block", "model.num_layers": "3"}),
    "pp2-gpt-bf16": (
        {"pipe": 2},
        {"model.family": "gpt", "train.dtype": "bf16", "model.hidden_dropout": "0", "model.attention_dropout": "0"},
    ),
}


def _as_the_formula_says(grid: dict[str, int], changes: dict[str, str]) -> None:
    from torch.utils.checkpoint import set_checkpoint_early_stop

    from megads.train.profile.flops import counted, expected, profile_text

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    with counted([engine.module], lambda: None) as found, set_checkpoint_early_stop(False):
        engine.train_step(batches(run, 1, groups.data_rank), rate(1))
    formula = expected(run, groups, run.train.global_batch)
    assert (found.forward, found.again, found.backward) == (formula.forward, formula.again, formula.backward)
    text = profile_text(found, formula, -1, "title")
    assert "+0.00%" in text
    layer = next(iter(engine.module.layers))
    lines = [line.split() for line in text.splitlines()]
    assert ["mlp"] in [line[:1] for line in lines]
    assert [f"layers.{layer}"] in [line[:1] for line in lines]
    assert ["mlp"] not in [line.split()[:1] for line in profile_text(found, formula, 2, "title").splitlines()]


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES)
def test_every_layout_computes_what_the_formula_says(case):
    grid, changes = CASES[case]
    run_ranks(max(grid.values()), _as_the_formula_says, grid, changes)


def _counting_changes_nothing(changes: dict[str, str]) -> None:
    import torch

    from megads.train.profile.flops import counted

    grid = {"tensor": 2}
    run, groups = settings(grid, **changes), groups_of(**grid)
    both: list[list[Any]] = []
    for looks in (False, True):
        torch.manual_seed(0)
        engine, losses = make_engine(run, groups), []
        for step in range(STEPS):
            parts = batches(run, step, groups.data_rank)
            if looks and step == 2:
                with counted([engine.module], lambda: None):
                    losses.append(float(engine.train_step(parts, rate(step)).loss))
            else:
                losses.append(float(engine.train_step(parts, rate(step)).loss))
        both.append(losses)
    assert both[0] == both[1]


@pytest.mark.dist
@pytest.mark.parametrize("again", ["none", "full"])
def test_counting_changes_no_loss(again):
    run_ranks(2, _counting_changes_nothing, {"recompute.granularity": again})
