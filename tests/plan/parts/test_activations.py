"""What a rank keeps for its backward pass, by hand and as autograd keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.memory import (
    count_parameters,
)
from megads.plan.parts.activations import Stage, layer_bytes
from megads.plan.parts.stacks import recomputing_bytes, saved_bytes


def _run(env: dict[str, str], ranks: int = 1, preset: str = "tiny", machine: str = "generic") -> RunConfig:
    resolved = resolve(preset, env={"TRAIN_ITERS": "10", **env}, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def test_recomputation_trades_kept_activations_for_work():
    stage = Stage(0, 4, True, True)
    full = {"NLAYERS": "4", "RECOMPUTE": "full"}
    plain, uniform = _run({"NLAYERS": "4"}), _run({**full, "RECOMPUTE_NUM_LAYERS": "2"})
    given = uniform.train.micro_batch * 64 * 64 * 4
    assert (saved_bytes(uniform, stage), recomputing_bytes(uniform, stage)) == (2 * given, 2 * layer_bytes(plain))
    block = _run({**full, "RECOMPUTE_METHOD": "block", "RECOMPUTE_NUM_LAYERS": "3"})
    assert saved_bytes(block, stage) == 3 * given + layer_bytes(plain)
    assert recomputing_bytes(block, stage) == layer_bytes(plain)
    split = _run({**full, "TP": "2", "DISTRIBUTE_SAVED_ACTIVATIONS": "1"}, ranks=2)
    assert saved_bytes(split, stage) == 4 * given // 2
    moved = _run({**full, "RECOMPUTE_WITH": "deepspeed", "CPU_CHECKPOINTING": "1"})
    assert saved_bytes(moved, stage) == 0


T5 = {"MODEL_FAMILY": "t5", "DECODER_SEQ": "64", "VOCAB_EXTRA_IDS": "0", "MAX_POSITIONS": "256"}
RELATIVE = {"POSITION_EMBEDDING": "relative", "NORMALIZATION": "rmsnorm", "ADD_BIAS": "0", "HIDDEN_DROPOUT": "0"}
# (ranks along the axes, settings); what autograd keeps is measured on one or several real ranks.
MEASURED = [
    ({}, {}),
    ({}, {"NUM_KV_HEAD": "2"}),
    ({}, {"NO_LLAMA": "1", "HIDDEN_DROPOUT": "0"}),
    ({}, {"ADD_BIAS": "1", "TIED_EMBEDDINGS": "1"}),
    ({}, {"DTYPE": "bf16", "HIDDEN_DROPOUT": "0.1"}),
    ({}, {"ATTENTION_DROPOUT": "0.1"}),
    ({}, {"ATTENTION_DROPOUT": "0.1", "DTYPE": "bf16", "NUM_KV_HEAD": "2"}),
    ({}, {"ATTENTION_DROPOUT": "0.1", "RECOMPUTE": "selective"}),
    ({}, {"RECOMPUTE": "full"}),
    ({}, {"RECOMPUTE": "full", "RECOMPUTE_METHOD": "block"}),
    ({"tensor": 2}, {"TP": "2"}),
    ({"tensor": 2}, {"TP": "2", "SCATTER_NORMS": "1"}),
    ({"tensor": 2}, {"TP": "2", "SCATTER_NORMS": "1", "NO_LLAMA": "1", "HIDDEN_DROPOUT": "0.1"}),
    ({}, {"QK_NORM": "head"}),
    ({}, {"QK_NORM": "all", "NORM_POSITION": "after", "DTYPE": "bf16"}),
    ({"tensor": 2}, {"TP": "2", "QK_NORM": "all", "NORM_POSITION": "after", "NUM_KV_HEAD": "2"}),
    ({"seq": 2}, {"SP": "2", "QK_NORM": "head", "DTYPE": "bf16"}),
    ({"seq": 2}, {"SP": "2"}),
    ({"seq": 2}, {"SP": "2", "RECOMPUTE": "selective", "DTYPE": "bf16"}),
    ({"seq": 3}, {"SP": "3", "SEQ": "126", "HEADS": "8"}),
    ({"seq": 4}, {"SP": "4", "NUM_KV_HEAD": "2"}),
    ({"seq": 3}, {"SP": "3", "SEQ": "126", "HEADS": "8", "NUM_KV_HEAD": "4"}),
    ({"seq": 3}, {"SP": "3", "SEQ": "126", "HEADS": "8", "NUM_KV_HEAD": "4", "RECOMPUTE": "selective"}),
    ({"tensor": 2, "seq": 2}, {"TP": "2", "SP": "2", "SCATTER_NORMS": "1", "RECOMPUTE": "full"}),
    ({}, {"RESET_ATTENTION_MASK": "1"}),
    ({}, {"RESET_ATTENTION_MASK": "1", "NO_LLAMA": "1", "RECOMPUTE": "selective"}),
    ({"seq": 2}, {"SP": "2", "NUM_KV_HEAD": "2", "RESET_ATTENTION_MASK": "1", "DTYPE": "bf16"}),
    ({"seq": 3}, {"SP": "3", "SEQ": "126", "HEADS": "8", "NUM_KV_HEAD": "4", "RESET_ATTENTION_MASK": "1"}),
    ({}, {**T5, "HIDDEN_DROPOUT": "0"}),
    ({}, {**T5, "HIDDEN_DROPOUT": "0.1", "DECODER_SEQ": "192"}),
    ({"tensor": 2}, {**T5, "HIDDEN_DROPOUT": "0", "TP": "2", "SCATTER_NORMS": "1"}),
    ({"seq": 2}, {**T5, "HIDDEN_DROPOUT": "0", "SP": "2", "RECOMPUTE": "selective"}),
    ({}, {**T5, "HIDDEN_DROPOUT": "0", "RECOMPUTE": "full"}),
    ({}, {**T5, **RELATIVE}),
]


@pytest.mark.parametrize(("axes", "env"), MEASURED, ids=lambda value: str(value))
def test_numbers_are_those_of_the_built_model(axes, env):
    """Parameters exactly; what a layer keeps for its backward pass within 5 %."""
    from tests.ranks import run_ranks

    ranks = axes.get("tensor", 1) * axes.get("seq", 1)
    run_ranks(ranks, _measure, axes, {"SEQ": "128", "ATTENTION_DROPOUT": "0", **env}, ranks)


def _measure(axes: dict[str, int], env: dict[str, str], ranks: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.ranks import groups_of

    groups = groups_of(**axes)
    saved = []
    for layers in (1, 3):
        run = _run({**env, "NLAYERS": str(layers), "MACHINE": "cpu"}, ranks=ranks, machine="cpu")
        stage = Stage(0, layers + run.model.decoder_layers, has_embedding=True, has_head=True)
        saved.append((_kept_by_autograd(run, groups), saved_bytes(run, stage)))
    measured, estimated = (torch.tensor(large - small) for small, large in zip(*saved, strict=True))
    # The estimate is of the rank that keeps most.
    dist.all_reduce(measured, op=dist.ReduceOp.MAX)
    assert float(estimated) == pytest.approx(float(measured), rel=0.05)


def _kept_by_autograd(run: RunConfig, groups: Any) -> int:
    import torch

    from megads.models.build import model_class
    from megads.parallel.recompute import Recompute

    again = Recompute(run.recompute.granularity, run.recompute.method, run.recompute.num_layers)
    model = model_class(run.model)(run.model, groups, scatter_norms=run.parallel.scatter_norms, recompute=again)
    if groups.grid.world_size == 1:
        assert sum(weight.numel() for weight in model.parameters()) == count_parameters(run.model)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    if run.train.dtype == "bf16":
        model.bfloat16()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    alive = []
    lengths = (run.model.seq_length, run.model.decoder_seq_length)
    tokens, said = (torch.zeros(run.train.micro_batch, n // groups.seq_size, dtype=torch.long) for n in lengths)
    labels = said if run.model.decoder_layers else tokens

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(torch.cat([tokens, said], dim=1), labels, documents=_documents(run, groups))
    assert loss.isfinite()
    return sum(kept.values())


def _documents(run: RunConfig, groups: Any) -> Any:
    """Return documents of 4, 3, 3, 3 ... tokens: when stacked, more filling than with these there never is."""
    import torch

    from megads.parallel.documents import find_documents

    tokens = torch.zeros(run.train.micro_batch, run.model.seq_length, dtype=torch.long)
    tokens[:, 3::3] = 1
    resets = {"reset_positions": False, "reset_attention": run.data.reset_attention_mask}
    return find_documents(tokens, 1, groups, **resets)
