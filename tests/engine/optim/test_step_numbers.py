"""Zeros in the gradient and the norm of the weights are those of the whole model, in every layout."""

from __future__ import annotations

import pytest

from tests.parity.layouts import Layout, on_both
from tests.ranks import run_ranks

ASKED = {"log.num_zeros": "true", "log.params_norm": "true"}
PIECES = {"deepspeed.param_persistence_threshold": "0"}
LAYOUTS = [
    Layout(zero=0),
    Layout(zero=1),
    Layout("gpt", tp=2, zero=1),
    Layout(dp=2, zero=0, more={"train.micro_batch": "1"}),
    Layout(dp=2, zero=2),
    Layout(dp=2, zero=3, more={**PIECES, "deepspeed.sub_group_size": "700"}),
    Layout("llama-tied", pp=2, zero=1),
    Layout(sp=2, zero=1),
    Layout(dp=2, zero=1, more={"train.dtype": "bf16"}),
    Layout(dp=2, zero=2, more={"train.dtype": "fp16", "optim.loss_scale": "1"}),
    Layout(dp=2, zero=1, more={"deepspeed.offload_optimizer": "cpu"}),
    Layout(dp=2, zero=1, more={"optim.optimizer": "muon"}),
    Layout("gpt", tp=2, dp=2, zero=3, more=PIECES),
    Layout(tp=2, pp=2, zero=0),
]
QUICK = LAYOUTS[2:7]
NATIVE = [layout.on("native") for layout in (*LAYOUTS[8:10], LAYOUTS[11], LAYOUTS[12])]
STEPS = 3


def _are_the_models(layout: Layout) -> None:
    from tests.engine.scripted import Scripted, gradient, rate, reference
    from tests.parity.layouts import batches

    scripted = Scripted(layout, **ASKED)
    found = []
    for step in range(STEPS):
        scripted.step = step
        parts = batches(scripted.run, step, scripted.groups.data_rank)
        found.append(scripted.engine.train_step(parts, rate(step)))
    same = {name: layout.more[name] for name in ("train.dtype", "optim.optimizer") if name in layout.more}
    for step, result in enumerate(found):
        weights = reference(layout.kind, step + 1, **same)
        zeros = sum(int((gradient(name, weight.shape, step) == 0).sum()) for name, weight in weights.items())
        norm = sum(float(weight.double().square().sum()) for weight in weights.values()) ** 0.5
        assert 0 < zeros == result.num_zeros
        assert result.params_norm == pytest.approx(norm, rel=1e-6)


@pytest.mark.dist
@pytest.mark.parametrize("layout", on_both(QUICK), ids=str)
def test_they_are_those_of_the_whole_model(layout):
    run_ranks(layout.ranks, _are_the_models, layout)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout not in QUICK] + NATIVE, ids=str)
def test_they_are_those_of_the_whole_model_everywhere(layout):
    run_ranks(layout.ranks, _are_the_models, layout)


def _skipped(zero: str, engine: str) -> None:
    from tests.engine.scripted import Scripted, rate
    from tests.parity.layouts import batches

    scripted = Scripted(Layout(zero=int(zero), engine=engine), **ASKED)
    scripted.factor = float("nan")
    result = scripted.engine.train_step(batches(scripted.run, 0, 0), rate(0))
    assert result.skipped
    assert result.num_zeros is None
    assert result.params_norm is not None


@pytest.mark.dist
@pytest.mark.parametrize(("zero", "engine"), [("0", "deepspeed"), ("1", "deepspeed"), ("1", "native")])
def test_a_step_without_an_update_has_no_zeros(zero, engine):
    run_ranks(1, _skipped, zero, engine)


def _not_asked() -> None:
    from tests.engine.scripted import Scripted, rate
    from tests.parity.layouts import batches

    scripted = Scripted(Layout(zero=1))
    result = scripted.engine.train_step(batches(scripted.run, 0, 0), rate(0))
    assert (result.num_zeros, result.params_norm) == (None, None)


@pytest.mark.dist
def test_nobody_asks_and_nothing_is_counted():
    run_ranks(1, _not_asked)
