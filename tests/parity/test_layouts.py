"""The parity matrix: every layout gives the losses, gradient norms and weights of one rank.

That recomputation changes no bit, with dropout as well: tests/engine/deepspeed/test_recompute.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from megads.config.schema import RunConfig
from tests.parity.layouts import (
    SAMPLES,
    STEPS,
    Layout,
    engine_of,
    on_both,
    on_either,
    one_rank_and_weights,
    train_on,
)
from tests.ranks import run_ranks

SCATTER = {"parallel.scatter_norms": "true"}
MASK = {"data.eod_mask_loss": "true"}
FULL = {"recompute.granularity": "full"}
FULL2 = {**FULL, "recompute.num_layers": "2"}
BLOCK = {**FULL, "recompute.method": "block", "recompute.num_layers": "1"}
SELECTIVE = {"recompute.granularity": "selective"}
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}
MANY = {"train.micro_batch": "1"}  # more accumulation steps

QUICK = [
    Layout(tp=2, zero=0),
    Layout(sp=2, zero=1),
    Layout(pp=2, zero=1),
    Layout(dp=2, zero=2),
    Layout("gqa", dp=2, zero=3, more=PARTITIONED),
    Layout("gpt", tp=2, more=SCATTER),
    Layout("gpt", pp=2, tp=2, zero=1),
    Layout("gqa", pp=2, sp=2, zero=1),
    Layout("gqa", tp=2, sp=2, zero=3, more={**PARTITIONED, **SCATTER, **FULL}),
    Layout(sp=2, dp=2, zero=1, more=MASK),
    Layout("qwen3", tp=2, sp=2, zero=3, more={**PARTITIONED, **SCATTER}),
    Layout("olmo2", tp=2, sp=2, zero=3, more={**PARTITIONED, **SCATTER}),
]
LONG = [
    # one axis
    Layout("gqa", tp=4, zero=1),
    Layout("gpt", tp=4, zero=0, more={**SCATTER, **MANY}),
    Layout("gpt", sp=4, zero=1),
    Layout("mqa", sp=4, zero=0),
    Layout("uneven", sp=4, zero=1),
    Layout("gpt", pp=4, zero=1),
    Layout(pp=4, zero=0, more={"parallel.pipeline_split": "0,3,1,0"}),
    Layout("gqa", dp=4, zero=0),
    Layout("gpt", dp=4, zero=2),
    Layout("llama", dp=8, zero=3, more={**PARTITIONED, **MANY}),
    # two axes
    Layout("gqa", tp=2, dp=2, zero=2, more=SCATTER),
    Layout("gpt", tp=2, dp=2, zero=3),
    Layout("llama", tp=2, sp=2, zero=0, more=MANY),
    Layout("gpt", tp=2, sp=2, zero=2, more={**SCATTER, **MASK}),
    Layout("uneven", tp=1, sp=2, dp=2, zero=3, more={**PARTITIONED, **MASK}),
    Layout("gqa", tp=2, sp=4, zero=1),
    Layout("gpt", tp=4, sp=2, zero=1, more=SCATTER),
    Layout("llama", pp=2, tp=2, zero=0, more=SCATTER),
    Layout("gpt", pp=2, dp=2, zero=0),
    Layout("gqa", pp=2, dp=2, zero=1, more={"parallel.pipeline_split": "1,3"}),
    Layout("gpt", pp=2, sp=2, zero=0, more=MASK),
    Layout("gpt", pp=2, sp=4, zero=1),
    Layout("llama", pp=4, tp=2, zero=1, more=MANY),
    Layout("mqa", sp=4, dp=2, zero=2),
    Layout("gpt", sp=2, dp=4, zero=3, more=PARTITIONED),
    # three and four axes
    Layout("llama", tp=2, sp=2, dp=2, zero=1, more=SCATTER),
    Layout("gpt", tp=2, sp=2, dp=2, zero=3, more={**PARTITIONED, **SCATTER, **MASK}),
    Layout("gqa", pp=2, tp=2, sp=2, zero=1, more=SCATTER),
    Layout("gpt", pp=2, tp=2, sp=2, zero=0, more={**SCATTER, **MASK}),
    Layout("gpt", pp=2, tp=2, dp=2, zero=1, more={"parallel.pipeline_split": "ends"}),
    Layout("llama", pp=2, sp=2, dp=2, zero=1, more={**MASK, **MANY}),
    Layout("gpt", pp=2, tp=2, zero=0, more={"parallel.pipeline_split": "4,0"}),
    # families
    Layout("qwen3", pp=2, tp=2, zero=1, more=FULL),
    Layout("qwen3", tp=4, dp=2, zero=2),
    Layout("qwen3", pp=2, sp=2, dp=2, zero=1),
    Layout("olmo2", pp=2, tp=2, zero=1, more={**SCATTER, **SELECTIVE}),
    Layout("olmo2", tp=4, dp=2, zero=1, more=FULL),
    Layout("olmo2", pp=2, sp=2, dp=2, zero=1),
    # recomputation
    Layout("gpt", tp=2, more=SELECTIVE),
    Layout("gqa", sp=2, dp=2, zero=2, more=FULL2),
    Layout("gpt", pp=2, tp=2, more={**BLOCK, **SCATTER}),
    Layout("llama", pp=2, sp=2, more=FULL2),
    Layout("gqa", dp=2, zero=3, more={**PARTITIONED, **BLOCK}),
    Layout("gpt", tp=2, dp=2, zero=1, more={**FULL, "recompute.engine": "deepspeed"}),
    Layout(
        "llama", tp=2, zero=1, more={**FULL, "recompute.engine": "deepspeed", "recompute.partition_activations": "true"}
    ),
    # ZeRO's own
    Layout("gqa", dp=4, zero=3, more={**PARTITIONED, "deepspeed.hpz_partition_size": "2"}),
    Layout("gpt", dp=2, zero=1, more={"deepspeed.offload_optimizer": "cpu"}),
    Layout("llama", tp=2, dp=2, zero=3, more={"deepspeed.offload_optimizer": "cpu", "deepspeed.offload_params": "cpu"}),
    Layout("llama", dp=2, zero=2, more={"parallel.ddp_impl": "torch"}),
]


def _layers(layout: Layout) -> str:
    """Return as few as show all: a stage has one or two."""
    return "4" if layout.pp > 1 else "2"


def _engine(layout: Layout, **changes: str) -> tuple[Any, RunConfig, Any]:
    """Return engine, settings and groups; without stages a step has two micro-batches, as far as 8 samples allow."""
    if layout.pp == 1 and "train.micro_batch" not in layout.more:
        changes["train.micro_batch"] = str(SAMPLES // layout.dp // (2 if layout.dp < SAMPLES else 1))
    return engine_of(layout, **{"model.num_layers": _layers(layout)}, **changes)


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard
    from tests.engine.plain import working

    masked = "data.eod_mask_loss" in layout.more
    losses, norms, weights = one_rank_and_weights(layout.kind, masked, layers=_layers(layout))
    engine, run, groups = _engine(layout)
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    assert not any(r.skipped for r in results)
    used = working(engine)
    for state in engine.state.by_parameter():
        whole = weights[state.name].detach()
        wanted = take_shard(whole, state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(used[state.name], state.tensors["weight"], rtol=0, atol=0)


@pytest.mark.dist
@pytest.mark.parametrize("layout", on_both(QUICK), ids=str)
def test_a_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("layout", sorted(on_either(LONG), key=lambda layout: layout.ranks), ids=str)
def test_every_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout, timeout_s=120)


def test_the_matrix_is_wide():
    layouts = [*QUICK, *LONG]
    assert len({str(layout) for layout in layouts}) == len(layouts) >= 50
    for degree in ("tp", "pp", "sp"):
        assert {getattr(layout, degree) for layout in layouts} == {1, 2, 4}
    assert {layout.zero for layout in layouts} == {0, 1, 2, 3}
    assert {layout.ranks for layout in layouts} == {2, 4, 8}


def _bf16_is_near(layout: Layout) -> None:
    losses, norms, _ = one_rank_and_weights(layout.kind, layers=_layers(layout))
    results = train_on(*_engine(layout, **{"train.dtype": "bf16"}), range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=1e-2)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=3e-2)


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    on_both(
        [
            Layout("gqa", tp=2, sp=2, more=SCATTER),
            Layout("gpt", pp=2, tp=2),
            Layout("llama", sp=2, dp=2, zero=2),
            Layout("gpt", dp=2, zero=3, more=PARTITIONED),
        ]
    ),
    ids=str,
)
def test_bf16_stays_within_a_hundredth_of_a_nat(layout):
    run_ranks(layout.ranks, _bf16_is_near, layout)
