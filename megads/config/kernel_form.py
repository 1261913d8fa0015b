"""In which form a run computes its layers and its loss, and why. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of

BY_DEFAULT = ("cuda", "xpu")
"""Types of devices on which ``KERNELS=auto`` compiles."""


@dataclass(frozen=True)
class Form:
    """A form, and in words what keeps the run from being compiled although it was to be; empty: nothing."""

    kind: Literal["eager", "compiled", "liger"]
    reason: str = ""


def form_of(run: RunConfig, world_size: int, device: str) -> Form:
    """Return the form of a derived ``run`` on devices of type ``device``, as torch calls them."""
    wanted = run.engine.kernels
    if wanted == "eager" or (wanted == "auto" and device not in BY_DEFAULT):
        return Form("eager")
    if wanted == "liger":
        return Form("liger")
    reason = next(_reasons(run, world_size), "")
    return Form("eager", reason) if reason else Form("compiled")


def _reasons(run: RunConfig, world_size: int) -> Iterator[str]:
    """Yield what does not go with compiled layers."""
    if run.model.hidden_dropout or run.model.attention_dropout:
        yield "dropout seeds its generator on the host at every layer"
    if run.model.family == "retro":
        yield "layers of retro hand neighbours on"
    if run.model.lora_rank:
        yield "LORA_RANK freezes weights, whose gradients compiled layers compute"
    if run.data.reset_attention_mask:
        yield "RESET_ATTENTION_MASK=1 gives attention other shapes in every batch"
    if schedule_of(run) == "zb-h1":
        yield "PIPELINE_SCHEDULE=zb-h1 computes weights' gradients apart"
    if run.recompute.mlp_tiles > 1:
        yield "MLP_TILES computes gradients inside of layers"
    if run.recompute.engine == "deepspeed":
        yield "RECOMPUTE_WITH=deepspeed works on layers that run eagerly"
    if run.parallel.zero_stage == 3 and choose(run, world_size).kind == "deepspeed":
        yield "DeepSpeed gathers the weights of ZeRO 3 inside of layers; ENGINE=native gathers whole layers"
