"""Updates that round to zero are counted per kind of weight, in every layout and by both engines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.train.numbers.rounding import Kind, kinds
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of
from tests.ranks import run_ranks
from tests.train.numbers.test_nonfinite import Lines

CHANGES = {
    "model.num_layers": "2",
    "train.train_iters": "2",
    "checkpoint.save_interval": "0",
    "optim.lr": "0.0001",
    "optim.lr_warmup_frac": "0",
    "data.num_workers": "0",
}


def round_masters(loop: Any) -> None:
    """Keep masters as bf16 does: every update is rounded to its neighbours."""

    def rounded(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.data.copy_(each.data.bfloat16())

    engine = loop.training.engine
    optimizer = engine.optimizer if hasattr(engine, "units") else engine.engine.basic_optimizer
    optimizer.register_step_post_hook(rounded)


def _counted(layout: Layout, folder: str, is_rounded: bool, changes: Any) -> None:
    loop = loop_of(layout, Path(folder), **{**CHANGES, **changes})
    lines = Lines()
    logging.getLogger("megads").addHandler(lines)
    try:
        if is_rounded:
            round_masters(loop)
        with loop.training.batches("train") as batches:
            loop.step(batches)
    finally:
        logging.getLogger("megads").removeHandler(lines)
    warnings = [line for line in lines.lines if "round to zero at" in line]
    row, lr = loop.numbers.rounding.row, loop.schedule.at(0).lr
    assert lr > 0
    if loop.training.groups.rank or not is_rounded:
        assert not warnings
        assert not row
        return
    norms = [f"layers.*.{name}_norm.weight" for name in ("input", "post")] + ["final_norm.weight"]
    for name in norms:
        assert row[f"rounded_updates/{name}"] == 1.0, row
        (line,) = [each for each in warnings if f"of the updates of {name} round" in each]
        assert line.startswith("step 1: 100% of the updates of "), line
        assert line.endswith("these weights do not train; keep their masters in float32, or raise LR")
    assert 0 < row["rounded_updates"] < 1


LAYOUTS = [
    Layout(engine="native"),
    Layout(dp=2, zero=1),
    Layout(tp=2, dp=2, zero=2, engine="native"),
    Layout(dp=2, zero=3),
    Layout(pp=2, zero=0, engine="native", more={"train.dtype": "bf16"}),
]


@pytest.mark.dist
@pytest.mark.parametrize("is_rounded", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_norms_that_never_move_are_named_in_the_first_step(tmp_path, layout, is_rounded):
    run_ranks(layout.ranks, _counted, layout, str(tmp_path / "run"), is_rounded, {})


def test_layers_of_one_name_are_a_kind():
    counts = {
        "layers.0.norm.weight": [4, 1, 0],
        "layers.1.norm.weight": [4, 3, 0],
        "head.weight": [8, 0, 8],
        "x": [0, 0, 0],
    }
    assert kinds(counts) == [
        Kind("layers.*.norm.weight", 0.5, "layers.1.norm.weight"),
        Kind("head.weight", 0.0, "head.weight"),
    ]


def test_the_steps_that_are_looked_at():
    from megads.train.numbers.rounding import RoundingCheck

    check = RoundingCheck.__new__(RoundingCheck)
    check.interval, check.peak, check.was_at_peak = 100, 1e-3, False
    steps = [(step, min(1e-3, 1e-3 * step / 40)) for step in range(1, 301)]
    assert [step for step, lr in steps if check.is_due(step, lr)] == [1, 2, 10, 20, 100, 200, 300]
    assert not check.is_due(400, 0.0)
    check.interval = 0
    assert not check.is_due(1, 1e-3)


def test_bf16_neighbours_are_what_the_page_says():
    one = torch.tensor(1.0).bfloat16()
    assert float(torch.nextafter(one, one + 1)) == 1.0078125
    assert float(torch.nextafter(one, one - 1)) == 0.99609375
