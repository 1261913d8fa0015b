"""Loss in chunks, MLP in tiles and recomputed layers against the plain path in the same layout: fp32, 1e-6."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.engine.plain import ENGINES, batches, eval_loss, in_halves, make_engine, rate, settings
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

MODELS = {
    "llama": {},
    "tied-gpt": {"model.family": "gpt", "model.tied_embeddings": "1"},
    "bf16": {"train.dtype": "bf16"},
}
PARTS = {
    "loss": {"recompute.loss_chunk": "5"},
    "mlp": {"recompute.mlp_tiles": "3"},
    "all": {"recompute.loss_chunk": "7", "recompute.mlp_tiles": "2", "recompute.granularity": "full"},
}
GRIDS = {
    "one": ({}, {}),
    "zero1": ({"data": 2}, {"parallel.zero_stage": "1"}),
    "zero3": (
        {"data": 2},
        {
            "parallel.zero_stage": "3",
            "deepspeed.param_persistence_threshold": "0",
            "deepspeed.max_live_parameters": "1",
            "deepspeed.max_reuse_distance": "0",
        },
    ),
    "tp2": ({"tensor": 2}, {}),
    "tp2-scatter": ({"tensor": 2}, {"parallel.scatter_norms": "1"}),
    "sp2": ({"seq": 2}, {}),
    "pp2": ({"pipe": 2}, {}),
}


def _trained(grid: dict[str, int], changes: Mapping[str, str], steps: int) -> tuple[list[float], dict[str, Any]]:
    """Return losses and norms of some steps with an evaluation behind the first, and the weights."""
    run, groups = settings(dict(grid), **in_halves(grid, changes)), groups_of(**grid)
    engine, numbers = make_engine(run, groups), []
    for step in range(steps):
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step))
        numbers += [float(result.loss), result.grad_norm]
        if step == 0:
            numbers.append(float(eval_loss(engine, batches(run, 7, groups.data_rank))))
    assert all(map(math.isfinite, numbers))
    return numbers, {state.name: state.tensors["weight"].clone() for state in engine.state.by_parameter()}


def _same(grid: dict[str, int], common: Mapping[str, str], part: Mapping[str, str], steps: int = 2) -> None:
    import torch

    numbers, weights = _trained(grid, common, steps)
    ours, ours_weights = _trained(grid, {**common, **part}, steps)
    tolerance = 1e-6 if common.get("train.dtype") != "bf16" else 2e-2  # bf16: other products are rounded
    assert ours == pytest.approx(numbers, rel=tolerance)
    for name, weight in weights.items():
        torch.testing.assert_close(ours_weights[name], weight, rtol=tolerance, atol=tolerance)


@pytest.mark.dist
@parametrize_pairs(grid=GRIDS, model=MODELS, part=PARTS, engine=ENGINES)
def test_what_is_cut_gives_what_the_whole_gives(grid, model, part, engine):
    degrees, changes = grid
    if engine == "native":  # which gathers by layers
        changes = {name: value for name, value in changes.items() if name.startswith("parallel.")}
    given = {**model, **changes, "engine.kind": engine}
    run_ranks(math.prod(degrees.values()), _same, degrees, given, part)


LONG = {
    **{"model.seq_length": "4096", "model.num_kv_heads": "1", "train.micro_batch": "1"},
    **{"train.global_batch": "8", "train.grad_acc_steps": "8", "parallel.zero_stage": "3"},
}
IN_PARTS = {
    **{"recompute.loss_chunk": "512", "recompute.mlp_tiles": "8", "recompute.granularity": "full"},
    "recompute.cpu_checkpointing": "1",
}


@pytest.mark.dist
def test_a_long_row_over_sequence_ranks_with_fewer_key_heads_gives_what_the_whole_gives():
    run_ranks(2, _same, {"seq": 2}, {**LONG, "engine.kind": "native"}, IN_PARTS, 1)
