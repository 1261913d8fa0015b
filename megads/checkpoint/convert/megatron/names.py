"""What Megatron calls a parameter, and what we do, by the tables of ``megads.families.megatron``. No torch."""

from __future__ import annotations

import re
from typing import Literal

from megads.errors import CheckpointError
from megads.families.megatron import HEADS, LAYER, OUTSIDE

Style = Literal["legacy", "core", "core-te"]

TIED_COPY = "tied"
"""Stands for what the last pipeline stage keeps of a tied embedding."""

_OURS = {theirs: ours for ours, each in LAYER.items() for theirs in (*each[:3], *each.imported) if theirs}
_OUTSIDE = {f"{theirs}.weight": f"{ours}.weight" for ours, theirs in OUTSIDE.items()}
_OUTSIDE["pooler.dense.bias"] = "pooler.dense.bias"
_HEADS = {f"{theirs}.{kind}": f"{ours}.{kind}" for ours, theirs in HEADS.items() for kind in ("weight", "bias")}
_STACK = r"(?:language_model\.(?:encoder|transformer)|decoder)\."
_IN_LAYER = re.compile(_STACK + r"layers\.(\d+)\.(.+?)(weight|bias)")
_FINAL_NORM = re.compile(_STACK + r"final_(?:layer)?norm\.(weight|bias)")
_IGNORED = re.compile(r"(.*\.)?(_extra_state|inv_freq|masked_bias)")
_FOREIGN = (
    (r"language_model\.decoder\.|.*\b(inter|cross)_attention\.|.*cross_attn", "of a T5 model"),
    (r"(classification|multichoice)_head\.", "of a model that was finetuned for a task"),
    (r".*\b(local_)?experts?\.|.*\brouter\.|.*deepspeed_moe", "of a mixture of experts"),
    (r".*word_embeddings\.norm\.|.*embed_layernorm", "a norm of the embedding, as BLOOM has"),
    (r".*\b([qk]_(layer)?norm(alization)?)\.", "a norm of queries and keys"),
)


def ours_of(name: str) -> tuple[str, int | None] | None:
    """Return our name of Megatron's ``name``, and the layer's number in its file if it is of a layer.

    The first matrix of an MLP is ``mlp.up`` here, gated or not. None: nothing is lost without it.

    Raises:
        CheckpointError: it is of a model that megads does not have, or unknown.
    """
    if _IGNORED.fullmatch(name):
        return None
    if (match := _IN_LAYER.fullmatch(name)) and match[2] in _OURS:
        return f"{_OURS[match[2]]}.{match[3]}", int(match[1])
    if match := _FINAL_NORM.fullmatch(name):
        return f"final_norm.{match[1]}", None
    if name == "word_embeddings_for_head.weight":
        return TIED_COPY, None
    if found := _HEADS.get(name.replace(".norm.", ".layernorm.")):
        return found, None
    if found := _OUTSIDE.get(name.removeprefix("language_model.")):
        return found, None
    kind = next((kind for pattern, kind in _FOREIGN if re.match(pattern, name)), "a parameter that no GPT or Llama has")
    raise CheckpointError(f"{name} is {kind}; megads imports GPT, Llama and BERT models")


def theirs_of(name: str, style: Style, layer: int | None, *, copy: bool = False) -> str:
    """Return Megatron's name of our parameter ``name``, which lacks ``layers.N.`` if it is of ``layer`` in its file.

    ``style`` core is that of a model without Transformer Engine, core-te with it. ``copy``: whether it is the last
    pipeline stage's copy of a tied embedding.
    """
    legacy = style == "legacy"
    stack = "language_model.encoder" if legacy else "decoder"
    module, _, kind = name.rpartition(".")
    if layer is not None:
        names = LAYER[module.replace("gate_up", "up")]
        theirs = names.legacy if legacy else names.core_te if style == "core-te" and names.core_te else names.core
        return f"{stack}.layers.{layer}.{theirs}{kind}"
    if copy:
        return "word_embeddings_for_head.weight" if legacy else "output_layer.weight"
    if module == "final_norm":
        return f"{stack}.final_layernorm.{kind}"
    if module in HEADS:
        return f"{HEADS[module]}.{kind}"
    return f"{'language_model.' if legacy else ''}{OUTSIDE[module]}.{kind}"
