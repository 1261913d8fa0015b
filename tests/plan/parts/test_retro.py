"""Retro: products of its layers by hand, and what looks and encoder keep, as autograd keeps it.

Against the operations that run: tests/models/test_flops.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.settings.engine import RecomputeConfig
from megads.config.sources.resolve import resolve
from megads.plan.flops import flops_per_token
from megads.plan.memory import count_parameters, estimate
from megads.plan.parts.activations import Stage
from megads.plan.parts.retro import layer_products, of_chunk, text_tokens
from megads.plan.parts.stacks import recomputing_bytes, saved_bytes
from tests.models.shapes import RETRO, make_run

SMALL = {"MODEL_FAMILY": "retro", "SEQ": "128", "RETRO_CHUNK_LENGTH": "16", "MACHINE": "cpu", "TRAIN_ITERS": "10"}
PLAIN = {"HIDDEN_DROPOUT": "0", "RETRO_ENCODER_HIDDEN_DROPOUT": "0"}
NO_WEIGHTS = {"ATTENTION_DROPOUT": "0", "RETRO_ENCODER_ATTENTION_DROPOUT": "0"}


def _run(env: dict[str, str], ranks: int = 1) -> RunConfig:
    resolved = resolve("tiny", env={**SMALL, **env}, machine="cpu")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def test_products_by_hand():
    """Width 32, MLP of 48, rows of 12 tokens: 3 chunks of 4, each with 2 neighbours of 8 tokens."""
    own, texts, matrices = 12, 48, 4 * 32 * 32 + 2 * 32 * 48
    plain = 2 * 32 * own * own, own * matrices
    look = 2 * 32 * own * 16, 2 * 32 * 32 * (own + texts)
    encoder = 2 * (2 * 32 * texts * 8) + 2 * 32 * texts * 4, 2 * texts * matrices + 2 * 32 * 32 * (texts + own)
    found = [(each.core, each.rest) for each in layer_products(RETRO)]
    assert found == [plain] * 5 + [tuple(map(sum, zip(plain, look, encoder, strict=True)))] + [plain]
    assert of_chunk(RETRO) == 16
    causal = layer_products(RETRO, causal=True)
    assert layer_products(RETRO)[0].core - causal[0].core == 32 * own * own
    run = make_run(RETRO).model_copy(update={"recompute": RecomputeConfig(granularity="selective")})
    assert flops_per_token(run).recomputed == 2 * sum(core for core, _ in found) / own


def _measure(axes: dict[str, int], env: dict[str, str], ranks: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.ranks import groups_of

    groups, saved = groups_of(**axes), []
    for layers in (5, 9):  # without a look; with two and the encoder
        run = _run({**env, "NLAYERS": str(layers)}, ranks)
        stage = Stage(0, layers, has_embedding=True, has_head=True)
        saved.append((_kept_by_autograd(run, groups), saved_bytes(run, stage)))
    measured, estimated = (torch.tensor(large - small) for small, large in zip(*saved, strict=True))
    dist.all_reduce(measured, op=dist.ReduceOp.MAX)
    assert float(estimated) == pytest.approx(float(measured), rel=0.05)


def _kept_by_autograd(run: RunConfig, groups: Any) -> int:
    import torch

    from megads.models.build import model_class
    from megads.parallel.recompute import Recompute

    again = Recompute(run.recompute.granularity, run.recompute.method, run.recompute.num_layers)
    model = model_class(run.model)(run.model, groups, scatter_norms=run.parallel.scatter_norms, recompute=again)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    if run.train.dtype == "bf16":
        model.bfloat16()
    if groups.grid.world_size == 1:
        assert sum(weight.numel() for weight in model.parameters()) == count_parameters(run.model)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    alive = []
    rows, own = run.train.micro_batch, run.model.seq_length // groups.seq_size
    texts = own // run.model.retro_chunk_length * of_chunk(run.model)
    tokens = torch.zeros(rows, own + texts, dtype=torch.long)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert model(tokens, tokens[:, :own]).isfinite()
    return sum(kept.values())


@pytest.mark.parametrize(
    ("axes", "env"),
    [
        ({}, {**PLAIN, **NO_WEIGHTS}),
        ({}, {**NO_WEIGHTS, "RETRO_NUM_NEIGHBORS": "1", "RETRO_ENCODER_LAYERS": "3"}),
        ({}, {"DTYPE": "bf16"}),
        ({}, {**PLAIN, **NO_WEIGHTS, "NORMALIZATION": "rmsnorm", "ACTIVATION": "swiglu", "NUM_KV_HEAD": "2"}),
        ({}, {**PLAIN, "RECOMPUTE": "selective"}),
        ({"tensor": 2}, {**PLAIN, **NO_WEIGHTS, "TP": "2", "SCATTER_NORMS": "1"}),
        ({"seq": 2}, {**PLAIN, **NO_WEIGHTS, "SP": "2"}),
    ],
    ids=str,
)
def test_what_looks_and_encoder_keep_is_what_autograd_keeps(axes, env):
    from tests.ranks import run_ranks

    ranks = axes.get("tensor", 1) * axes.get("seq", 1)
    run_ranks(ranks, _measure, axes, env, ranks)


def test_what_is_computed_again_is_the_layer_that_keeps_most():
    env = {**PLAIN, **NO_WEIGHTS, "NLAYERS": "9", "RECOMPUTE": "full"}
    stage = Stage(0, 9, has_embedding=True, has_head=True)
    again, kept = _run(env), _run({**env, "RECOMPUTE": "none"})
    parts = [saved_bytes(kept, Stage(0, n, True, True)) for n in range(10)]
    largest = max(b - a for a, b in pairwise(parts))
    assert recomputing_bytes(again, stage) == largest
    tokens = text_tokens(again)
    row = 4 * again.model.hidden_size
    assert saved_bytes(again, stage) == 9 * again.train.micro_batch * 128 * row + 2 * tokens * row
    shut = _run({**env, "RETRO_ATTENTION_GATE": "0", "RECOMPUTE": "none"})
    assert saved_bytes(shut, stage) == 9 * parts[1]
    assert estimate(shut, 1).activations < estimate(kept, 1).activations
