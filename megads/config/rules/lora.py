"""What adapters of low rank (LORA_RANK) cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megads.config.rules.advice import Change, Problem, each_of
from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import chunk_steps
from megads.config.tree import env_name, fields, value_of
from megads.families.decoder import spec_of
from megads.families.lora import PARTS, WORDS, A, B, adapter_of, parts_of, unknown_words
from megads.families.spec import by_name
from megads.families.table import FAMILIES

RANK, ALPHA = "model.lora_rank", "model.lora_alpha"
TARGETS, DROPOUT = "model.lora_targets", "model.lora_dropout"
OFF: Change = {RANK: 0}
PLAIN: dict[str, Any] = {
    "parallel.pipeline_schedule": "1f1b",
    "deepspeed.offload_params": "none",
    "deepspeed.hpz_partition_size": 1,
}
"""Settings that adapters are not trained with unless they have these values."""


def adapters(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check which matrices get adapters, and of what rank."""
    model = run.model
    given = f"LORA_RANK={model.lora_rank}"
    if not model.lora_rank:
        yield from _without_rank(model)
        return
    if FAMILIES[model.family].samples != "causal":
        text = f"{given}: a model of MODEL_FAMILY={model.family} has no adapters"
        yield Problem(text, [OFF], "use a decoder: llama, gpt, qwen3 or olmo2")
    if model.num_classes:
        yield Problem(f"{given} freezes the head of TASK={run.finetune.task}, which is new and must be trained", [OFF])
    words = ", ".join(WORDS)
    if unknown := unknown_words(model.lora_targets):
        yield Problem(f"LORA_TARGETS={model.lora_targets!r:.60}: {unknown[0]!r:.30} is none of {words}", [_all()])
    projections = {
        each.name.removesuffix(".weight"): each for each in spec_of(model).layer if each.name.endswith(".weight")
    }
    there = {part for name in projections for part in PARTS.get(name, ())}
    asked = parts_of(model.lora_targets)
    missing = [part for part in asked if part not in there]
    if not asked or (missing and len(asked) < len(WORDS["all"]) and missing != ["gate"]) or missing == [*asked]:
        what = f"a layer has no {missing[0]}" if missing else "it names nothing"
        yield Problem(f"LORA_TARGETS={model.lora_targets!r:.60}: {what}", [_all()], f"use words of {words}")
    side = smallest_side(model)
    if model.lora_rank > side:
        text = f"{given} is more than the smaller side of a matrix that gets adapters, {side}"
        yield Problem(text, each_of(RANK, [rank for rank in (8, side // 4, side) if 0 < rank <= side]))


def smallest_side(model: ModelConfig) -> int:
    """Return the smallest side of any matrix that has an adapter."""
    sides = [1 << 24]
    for each in by_name(spec_of(model).layer).values():
        if each.kind == "adapter" and each.name.endswith(A):
            sides.append(each.shape[1])
        elif each.kind == "adapter" and each.name.endswith(B):
            adapter = adapter_of(model, each.name.removesuffix(f".{B}"))
            sides += [each.shape[0]] if adapter is None or adapter.is_shared else list(each.parts or each.shape[:1])
    return min(sides)


def _all() -> Change:
    return {TARGETS: "all"}


def _without_rank(model: ModelConfig) -> Iterator[Problem]:
    """Refuse settings of adapters that there are none of."""
    given = {DROPOUT: f"{model.lora_dropout:g}", ALPHA: f"{model.lora_alpha:g}", TARGETS: f"{model.lora_targets!r:.60}"}
    for name, value in given.items():
        default = fields()[name].default
        if getattr(model, name.partition(".")[2]) != default:
            text = f"{env_name(name)}={value} needs adapters, and LORA_RANK=0"
            yield Problem(text, [{RANK: 8}, {name: default}], overridable=(name,))


def frozen(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check what does not work with weights that are frozen."""
    if not run.model.lora_rank:
        return
    given = f"LORA_RANK={run.model.lora_rank}"
    for name, plain in PLAIN.items():
        value = value_of(run, name)
        if value != plain and (name != "parallel.pipeline_schedule" or value == "zb-h1"):
            text = f"{given}: adapters are not trained with {env_name(name)}={value}"
            yield Problem(text, [{name: plain}, OFF], overridable=(name,))
    last = spec_of(run.model).num_layers
    if any(not any(0 < step <= last for step in steps) for chunks in chunk_steps(run) for steps in chunks):
        text = f"{given}: PIPELINE_SPLIT={run.parallel.pipeline_split} has a stage without layers, which trains nothing"
        yield Problem(text, [{"parallel.pipeline_split": "layers"}, OFF])
    if run.model.lora_dropout and run.recompute.mlp_tiles > 1:
        text = f"LORA_DROPOUT={run.model.lora_dropout:g} draws once, and MLP_TILES={run.recompute.mlp_tiles} twice"
        yield Problem(text, [{DROPOUT: 0.0}, {"recompute.mlp_tiles": 1}])


RULES = (adapters, frozen)
