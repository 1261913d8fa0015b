"""Rows of ``megatron_memory.csv`` whose models have experts, latent attention or Mamba layers."""

from __future__ import annotations

import re

from benchmarks.planner.megatron_rows import Facts, Test, is_on, pieces_of, size
from megads.plan.memory import stages
from megads.plan.parts.activations import Stage
from megads.plan.parts.experts import Extended, Latent, stages_of

VISION, PROJECTOR = 303_507_456, 1024 * 4096 + 4096 * 4096 + 2 * 4096
"""Parameters of LLaVA 1.5 besides its language model: CLIP ViT-L/14 at 336 pixels, and the MLP that is trained."""

FREQUENCY = re.compile(r"\[(\d)\]\*(\d+)")


def extended_of(test: Test) -> Extended | None:
    """Return what the model of a row has besides a decoder's layers; None: nothing."""
    facts, run = test.facts, test.run
    pattern = facts.get("hybrid-layer-pattern") or facts.get("hybrid-override-pattern", "")
    if facts["suite"] == "mimo":
        return Extended("t" * run.model.num_layers, is_frozen=True, more=PROJECTOR, more_frozen=VISION)
    if not (facts.get("num-experts") or pattern):
        return None
    tensor = run.parallel.tensor
    return Extended(
        layers=_pattern(pattern) if pattern else _kinds(facts, run.model.num_layers),
        experts=size(facts, "num-experts", 0),
        chosen=size(facts, "moe-router-topk", 2),
        inner=size(facts, "moe-ffn-hidden-size", run.model.ffn_hidden_size),
        shared=size(facts, "moe-shared-expert-intermediate-size", 0),
        expert_parallel=size(facts, "expert-model-parallel-size"),
        expert_tensor=size(facts, "expert-tensor-parallel-size", tensor),
        latent=_latent(facts),
        outer=size(facts, "moe-latent-size", 0),
        further=size(facts, "mtp-num-layers", 0),
        mamba_heads=size(facts, "mamba-num-heads", 0),
        mamba_head=size(facts, "mamba-head-dim", 64),
    )


def _pattern(text: str) -> str:
    """Return the kinds of layers; ``|`` parts stages, and what follows ``/`` is repeated for tokens further on."""
    return text.split("/", 1)[0].replace("|", "")


def _kinds(facts: Facts, layers: int) -> str:
    found = "".join("te"[int(kind)] * int(count) for kind, count in FREQUENCY.findall(facts.get("moe-layer-freq", "")))
    return found if len(found) == layers else "e" * layers


def _latent(facts: Facts) -> Latent | None:
    if not is_on(facts, "multi-latent-attention"):
        return None
    return Latent(
        queries=size(facts, "q-lora-rank", 0),
        keys=size(facts, "kv-lora-rank", 32),
        head=size(facts, "qk-head-dim", 128),
        turned=size(facts, "qk-pos-emb-head-dim", 64),
        values=size(facts, "v-head-dim", 128),
    )


def last_stage(test: Test, model: Extended) -> Stage:
    """Return the stage that wrote the row: the last one."""
    pipeline, pieces = test.run.parallel.pipeline, pieces_of(test.facts)
    if not (pieces or test.facts.get("hybrid-layer-pattern") or test.facts.get("hybrid-override-pattern")):
        return list(stages(test.run))[-1]
    counts = [len(piece) for piece in pieces] or [len(model.layers) // pipeline] * pipeline
    return stages_of([counts[index::pipeline] for index in range(pipeline)])[-1]
