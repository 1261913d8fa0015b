"""What Megatron calls a parameter, and what we do, by the tables of ``megads.families.megatron``. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from megads.errors import CheckpointError
from megads.families.megatron import DECODER_LAYER, HEADS, LAYER, OUTSIDE, LayerName

Style = Literal["legacy", "core", "core-te"]
Kind = Literal["decoder", "bert", "t5"]
"""What a name is of: GPT or Llama, BERT, T5."""

IMPORTED = "GPT, Llama, BERT and T5 models"

TIED_COPY = "tied"
"""Stands for what the last pipeline stage keeps of a tied embedding."""

ENCODER_NORM = "encoder_norm"
"""The last norm of T5's encoder, which we have in the encoder's last layer."""


class Place(NamedTuple):
    """A parameter of ours in a file of theirs."""

    name: str  # without ``layers.N.``
    layer: int | None = None  # its number in the file and stack; None: it is outside the layers
    stack: int = 0  # 1: T5's decoder


def _modules(table: Mapping[str, LayerName]) -> dict[str, str]:
    return {theirs: ours for ours, each in table.items() for theirs in (*each[:3], *each.imported) if theirs}


_LAYERS = _modules(LAYER), _modules(DECODER_LAYER)
_OUTSIDE = {f"{theirs}.weight": f"{ours}.weight" for ours, theirs in OUTSIDE.items()}
_OUTSIDE["pooler.dense.bias"] = "pooler.dense.bias"
_HEADS = {
    kind: {
        f"{theirs}.{end}": f"{ours}.{end}"
        for ours, each in heads.items()
        for theirs in (each.legacy, each.core, *each.imported)
        for end in (("bias",) if ours in ("lm_head", "output_bias") else ("weight", "bias"))
    }
    for kind, heads in HEADS.items()
}
for _names in _HEADS.values():
    _names["lm_head.output_layer.weight"] = "head.weight"
_HEADS["t5"]["position_embeddings.weight"] = "positions.weight"
_STACK = r"(language_model\.(?:encoder|transformer|decoder)|encoder|decoder)\."
_IN_LAYER = re.compile(_STACK + r"layers\.(\d+)\.(.+?)(weight|bias)")
_FINAL_NORM = re.compile(_STACK + r"final_(?:layer)?norm\.(weight|bias)")
_STACKS: Mapping[Kind, tuple[tuple[str, ...], ...]] = {
    "decoder": (("language_model.encoder", "language_model.transformer", "decoder"),),
    "bert": (("language_model.encoder", "language_model.transformer", "encoder"),),
    "t5": (("language_model.encoder", "encoder"), ("language_model.decoder", "decoder")),
}
"""What the names of the layers of each stack begin with."""

_IGNORED = re.compile(r"(.*\.)?(_extra_state|inv_freq|masked_bias)")
_FOREIGN = (
    (r".*relative_(pos_emb|attention_bias)", "a table of relative positions, which Megatron scales otherwise"),
    (r"language_model\.decoder\.|.*\b(inter|cross)_attention\.|.*cross_attn", "of a T5 model"),
    (r"(classification|multichoice)_head\.", "of a model that was finetuned for a task"),
    (r".*\b(local_)?experts?\.|.*\brouter\.|.*deepspeed_moe", "of a mixture of experts"),
    (r".*word_embeddings\.norm\.|.*embed_layernorm", "a norm of the embedding, as BLOOM has"),
    (r".*\b([qk]_(layer)?norm(alization)?)\.", "a norm of queries and keys"),
)
_OF_T5 = re.compile(r"language_model\.decoder\.|.*\.(inter|cross)_attention\.")
_OF_BERT = re.compile(r"lm_head\.dense\.|binary_head\.|encoder\.layers\.")


def kind_of(names: Iterable[str]) -> Kind:
    """Return what the tensors of all stages are of, by their ``names``."""
    every = list(names)
    if any(map(_OF_T5.match, every)):
        return "t5"
    return "bert" if any(map(_OF_BERT.match, every)) else "decoder"


def ours_of(name: str, kind: Kind = "decoder") -> Place | None:
    """Return where Megatron's ``name`` of a model of ``kind`` is among ours. None: nothing is lost without it.

    The first matrix of an MLP is ``mlp.up`` here, gated or not.

    Raises:
        CheckpointError: it is of a model that megads does not have, or unknown.
    """
    if _IGNORED.fullmatch(name):
        return None
    if (match := _IN_LAYER.fullmatch(name)) and (stack := _stack(match[1], kind)) is not None:
        modules = _LAYERS[stack]
        if match[3] in modules:
            return Place(f"{modules[match[3]]}.{match[4]}", int(match[2]), stack)
    if (match := _FINAL_NORM.fullmatch(name)) and (stack := _stack(match[1], kind)) is not None:
        is_last = stack == len(_STACKS[kind]) - 1
        return Place(f"{'final_norm' if is_last else ENCODER_NORM}.{match[2]}", None, stack)
    if name == "word_embeddings_for_head.weight":
        return Place(TIED_COPY)
    if found := _HEADS.get(kind, {}).get(name):
        return Place(found)
    if found := _OUTSIDE.get(name.removeprefix("language_model.")):
        return Place(found)
    what = next((what for pattern, what in _FOREIGN if re.match(pattern, name)), "a parameter that no GPT or Llama has")
    raise CheckpointError(f"{name} is {what}; megads imports {IMPORTED}")


def _stack(prefix: str, kind: Kind) -> int | None:
    return next((number for number, prefixes in enumerate(_STACKS[kind]) if prefix in prefixes), None)


def theirs_of(
    name: str, style: Style, layer: int | None, *, copy: bool = False, kind: Kind = "decoder", stack: int = 0
) -> str:
    """Return Megatron's name of our parameter ``name``, which lacks ``layers.N.`` if it is of ``layer`` in its file.

    ``style`` core is that of a model without Transformer Engine, core-te with it. ``copy``: whether it is the last
    pipeline stage's copy of a tied embedding. ``kind`` is that of the model, ``stack`` 1 for T5's decoder.
    """
    legacy = style == "legacy"
    prefix = _STACKS[kind][stack][0 if legacy else -1]
    module, _, end = name.rpartition(".")
    if module == ENCODER_NORM:
        return f"{prefix}.final_layernorm.{end}"
    if layer is not None:
        names = (LAYER, DECODER_LAYER)[stack][module.replace("gate_up", "up")]
        theirs = names.legacy if legacy else names.core_te if style == "core-te" and names.core_te else names.core
        return f"{prefix}.layers.{layer}.{theirs}{end}"
    output = "lm_head.output_layer" if kind == "t5" else "output_layer"
    if copy:
        return "word_embeddings_for_head.weight" if legacy else f"{output}.weight"
    if module == "final_norm":
        return f"{prefix}.final_layernorm.{end}"
    if found := HEADS.get(kind, {}).get(module):
        return f"{found.legacy if legacy else found.core}.{end}"
    if module == "head" and not legacy:
        return f"{output}.weight"
    return f"{'language_model.' if legacy else ''}{OUTSIDE[module]}.{end}"
