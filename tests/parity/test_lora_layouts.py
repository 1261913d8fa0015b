"""Adapters in every layout: the losses, gradient norms and adapters of one rank, and a base that stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.layouts import SAMPLES, STEPS, Layout, engine_of, one_rank_and_weights, train_on
from tests.ranks import run_ranks

LORA = {"model.lora_rank": "3", "model.lora_alpha": "12"}
SCATTER = {"parallel.scatter_norms": "true"}
FULL = {"recompute.granularity": "full"}
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}

LAYOUTS = [
    Layout(tp=2, zero=0),
    Layout("gpt", tp=2, zero=1, more=SCATTER),
    Layout("gqa", dp=2, zero=1),
    Layout("gpt", dp=2, zero=2),
    Layout("gqa", dp=2, zero=3, more=PARTITIONED),
    Layout("gpt", dp=2, zero=3, more={**PARTITIONED, **FULL}),
    Layout("llama", sp=2, zero=1),
    Layout("gpt", pp=2, zero=1),
    Layout("gqa", pp=2, tp=2, zero=1, more={**SCATTER, **FULL}),
    Layout("llama", tp=2, dp=2, zero=3, more={**PARTITIONED, **SCATTER, "model.lora_targets": "q v down"}),
    Layout("gpt", tp=2, dp=2, zero=2, more={**SCATTER, "model.lora_targets": "k out up"}),
    Layout("gqa", dp=2, zero=0),
]
NATIVE = [layout.on("native") for layout in LAYOUTS]


def _layers(layout: Layout) -> str:
    return "4" if layout.pp > 1 else "2"


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    model = {**LORA, **{name: value for name, value in layout.more.items() if name.startswith("model.")}}
    losses, norms, weights = one_rank_and_weights(layout.kind, layers=_layers(layout), more=tuple(model.items()))
    changes = {"model.num_layers": _layers(layout), **model}
    if layout.pp == 1:
        changes["train.micro_batch"] = str(SAMPLES // layout.dp // 2)
    engine, run, groups = engine_of(layout, **changes)
    before = frozen(engine)
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    seen = {}
    for state in engine.state.by_parameter():
        assert ".lora_" in state.name
        wanted = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=2e-6)
        seen[state.name] = state.tensors["weight"]
    assert seen
    assert all(weight.any() for name, weight in seen.items() if name.endswith("lora_b"))
    after = frozen(engine)
    assert before.keys() == after.keys()
    assert before
    for name, weight in before.items():
        assert torch.equal(weight, after[name]), name
    masters = {shard.name for shard in engine.state.owned_shards()}
    assert all(".lora_" in name for name in masters)


def frozen(engine: Any) -> dict[str, Any]:
    """Return what a rank holds of the frozen weights."""
    return {shard.name: shard.tensors["weight"].clone() for shard in engine.state.frozen_shards()}


@pytest.mark.dist
@pytest.mark.parametrize("layout", [*NATIVE, *LAYOUTS], ids=str)
def test_adapters_train_like_on_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)
