"""Schedule-free optimizers are evaluated at their average, and train on as if nobody had looked.

Gradients are scripted (``tests.engine.scripted``): weights are the library's to the last bit.
"""

from __future__ import annotations

import pytest

pytest.importorskip("schedulefree")

from tests.parity.layouts import Layout
from tests.ranks import run_ranks

STEPS, FEW = 6, 4
WAIT = 300  # seconds, on a busy host
PIECES = {"deepspeed.param_persistence_threshold": "0"}
NAMES = ["adamwschedulefree", "sgdschedulefree"]
LAYOUTS = [
    Layout(dp=2, zero=0),
    Layout("gqa", tp=2, zero=1),
    Layout(dp=2, zero=2),
    Layout(dp=2, zero=3, more=PIECES),
    Layout("llama-tied", pp=2, zero=1),
    pytest.param(Layout(dp=2, zero=1, more={"deepspeed.offload_optimizer": "cpu"}), marks=pytest.mark.slow),
    pytest.param(
        Layout(dp=4, zero=3, more={"train.micro_batch": "1", **PIECES, "deepspeed.hpz_partition_size": "2"}),
        marks=pytest.mark.slow,
    ),
    pytest.param(Layout("gqa", pp=2, tp=2, zero=0), marks=pytest.mark.slow),
    *(Layout(dp=2, zero=stage).on("native") for stage in (0, 1, 3)),
    Layout("gqa", tp=2, sp=2, zero=2).on("native"),
]


def validation(scripted):
    """Return this rank's micro-batches of a step that is not trained on, and all of its samples."""
    import torch

    from tests.parity.layouts import batches

    own = batches(scripted.run, 99, scripted.groups.data_rank)
    run = Layout(scripted.layout.kind).run(**{**_changes("adamwschedulefree"), "train.micro_batch": "8"})
    return own, torch.cat(batches(run, 99, 0))


def _changes(name: str) -> dict[str, str]:
    from tests.engine.scripted import SMALL

    return {**SMALL, "optim.optimizer": name}


def is_evaluated_at_the_average(layout: Layout, name: str) -> None:
    from tests.engine.plain import eval_loss
    from tests.engine.scripted import Scripted, loss_of

    scripted = Scripted(layout, **_changes(name))
    own, samples = validation(scripted)
    start = float(eval_loss(scripted.engine, own))
    assert start == pytest.approx(loss_of(layout.kind, 0, samples, in_use=False, **_changes(name)), rel=1e-6)
    scripted.train(STEPS)
    found = float(eval_loss(scripted.engine, own))
    average = loss_of(layout.kind, STEPS, samples, in_use=True, **_changes(name))
    assert found == pytest.approx(average, rel=1e-6)
    # The point where gradients are taken is another.
    assert abs(found - loss_of(layout.kind, STEPS, samples, in_use=False, **_changes(name))) > 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_evaluation_is_at_the_average(layout, name):
    run_ranks(layout.ranks, is_evaluated_at_the_average, layout, name, timeout_s=WAIT)


def trains_on_as_if_not_evaluated(layout: Layout, dtype: str) -> None:
    import torch

    from tests.engine.plain import eval_loss, working_weights
    from tests.engine.scripted import Scripted

    changes = {**_changes("adamwschedulefree"), "train.dtype": dtype}
    seen, unseen = Scripted(layout, **changes), Scripted(layout, **changes)
    own, _ = validation(seen)
    for step in range(FEW):
        eval_loss(seen.engine, own)
        seen.train(step + 1)
        unseen.train(step + 1)
        for ours, theirs in zip(working_weights(seen.engine), working_weights(unseen.engine), strict=True):
            assert torch.equal(ours, theirs)
    for ours, theirs in zip(seen.engine.state.by_parameter(), unseen.engine.state.by_parameter(), strict=True):
        assert set(ours.tensors) == {"weight", "z", "exp_avg_sq"}
        for kind, tensor in theirs.tensors.items():
            assert torch.equal(ours.tensors[kind], tensor), f"{ours.name} {kind}"
    assert seen.engine.state.scalars() == unseen.engine.state.scalars()
    assert seen.engine.state.scalars()["group.k"] == FEW


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_training_goes_on_as_if_nobody_had_evaluated(layout, dtype):
    run_ranks(layout.ranks, trains_on_as_if_not_evaluated, layout, dtype, timeout_s=WAIT)
