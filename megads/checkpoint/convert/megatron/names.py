"""What Megatron calls a parameter, and what we do. No torch.

::

    ours                    legacy                                       core
    embedding.weight        language_model.embedding.word_embeddings     embedding.word_embeddings
    positions.weight        language_model.embedding.position_embeddings embedding.position_embeddings
    layers.N.input_norm     language_model.encoder.layers.N.input_layernorm   decoder.layers.N.input_layernorm
                  .attention.qkv                    .self_attention.query_key_value     .self_attention.linear_qkv
                  .attention.out                    .self_attention.dense               .self_attention.linear_proj
                  .post_norm                        .post_attention_layernorm           .pre_mlp_layernorm
                  .mlp.up, .mlp.gate_up             .mlp.dense_h_to_4h                  .mlp.linear_fc1
                  .mlp.down                         .mlp.dense_4h_to_h                  .mlp.linear_fc2
    final_norm              language_model.encoder.final_layernorm       decoder.final_layernorm
    head.weight             language_model.output_layer                  output_layer

Versions before 2022 say ``transformer`` for ``encoder`` and ``attention`` for ``self_attention``, later
ones ``norm`` for ``layernorm``. With Transformer Engine core keeps the norms of a layer in
the matrix behind them, as ``linear_qkv.layer_norm_weight``; legacy models with it say
``self_attention.layernorm_qkv`` and ``layernorm_mlp.fc1_weight``. The layers of a file count from 0.
"""

from __future__ import annotations

import re
from typing import Literal

from megads.errors import CheckpointError

Style = Literal["legacy", "core", "core-te"]

TIED_COPY = "tied"
"""Stands for what the last pipeline stage keeps of a tied embedding."""

_LEGACY = {
    "input_norm": "input_layernorm",
    "attention.qkv": "self_attention.query_key_value",
    "attention.out": "self_attention.dense",
    "post_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.gate_up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
_CORE = {
    "input_norm": "input_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "post_norm": "pre_mlp_layernorm",
    "mlp.up": "mlp.linear_fc1",
    "mlp.gate_up": "mlp.linear_fc1",
    "mlp.down": "mlp.linear_fc2",
}
_FUSED_NORMS = {"input_norm": "self_attention.linear_qkv.layer_norm_", "post_norm": "mlp.linear_fc1.layer_norm_"}

_STACK = r"(?:language_model\.(?:encoder|transformer)|decoder)\."
_IN_LAYER = tuple(
    (re.compile(_STACK + r"layers\.(\d+)\." + pattern + r"(weight|bias)"), ours)
    for pattern, ours in (
        (r"input_(?:layer)?norm\.", "input_norm"),
        (r"self_attention\.linear_qkv\.layer_norm_", "input_norm"),
        (r"(?:self_)?attention\.query_key_value\.", "attention.qkv"),
        (r"self_attention\.linear_qkv\.", "attention.qkv"),
        (r"(?:self_)?attention\.dense\.", "attention.out"),
        (r"self_attention\.linear_proj\.", "attention.out"),
        (r"post_attention_(?:layer)?norm\.", "post_norm"),
        (r"pre_mlp_layernorm\.", "post_norm"),
        (r"mlp\.linear_fc1\.layer_norm_", "post_norm"),
        (r"mlp\.dense_h_to_4h\.", "mlp.up"),
        (r"mlp\.linear_fc1\.", "mlp.up"),
        (r"mlp\.dense_4h_to_h\.", "mlp.down"),
        (r"mlp\.linear_fc2\.", "mlp.down"),
        (r"self_attention\.layernorm_qkv\.layer_norm_", "input_norm"),
        (r"self_attention\.layernorm_qkv\.", "attention.qkv"),
        (r"self_attention\.proj\.", "attention.out"),
        (r"layernorm_mlp\.layer_norm_", "post_norm"),
        (r"layernorm_mlp\.fc1_", "mlp.up"),
        (r"layernorm_mlp\.fc2_", "mlp.down"),
    )
)
_OUTSIDE = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"(?:language_model\.)?embedding\.word_embeddings\.weight", "embedding.weight"),
        (r"(?:language_model\.)?embedding\.position_embeddings\.weight", "positions.weight"),
        (_STACK + r"final_(?:layer)?norm\.(weight|bias)", r"final_norm.\1"),
        (r"(?:language_model\.)?output_layer\.weight", "head.weight"),
        (r"word_embeddings_for_head\.weight", TIED_COPY),
    )
)
_IGNORED = re.compile(r"(.*\.)?(_extra_state|inv_freq|masked_bias)")
_FOREIGN = (
    (r"language_model\.decoder\.|.*\b(inter|cross)_attention\.|.*cross_attn", "of a T5 model"),
    (r"(language_model\.)?(pooler|lm_head|binary_head)\.|.*tokentype_embeddings", "of a BERT model"),
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
    for pattern, ours in _IN_LAYER:
        if match := pattern.fullmatch(name):
            return f"{ours}.{match[2]}", int(match[1])
    for pattern, ours in _OUTSIDE:
        if match := pattern.fullmatch(name):
            return match.expand(ours), None
    kind = next((kind for pattern, kind in _FOREIGN if re.match(pattern, name)), "a parameter that no GPT or Llama has")
    raise CheckpointError(f"{name} is {kind}; megads imports GPT and Llama models")


def theirs_of(name: str, style: Style, layer: int | None, *, copy: bool = False) -> str:
    """Return Megatron's name of our parameter ``name``.

    Args:
        name: without ``layers.N.`` if it is of a layer.
        style: legacy; core, as a model without Transformer Engine has it; core-te, with it.
        layer: its number in its file; None: it is of none.
        copy: whether it is the last pipeline stage's copy of a tied embedding.
    """
    legacy = style == "legacy"
    if layer is None:
        prefix = "language_model." if legacy else ""
        if copy:
            return "word_embeddings_for_head.weight" if legacy else "output_layer.weight"
        if name.startswith("final_norm."):
            stack = "language_model.encoder" if legacy else "decoder"
            return f"{stack}.final_layernorm.{name.split('.')[1]}"
        known = {"embedding": "embedding.word_embeddings", "positions": "embedding.position_embeddings"}
        return f"{prefix}{known.get(name.split('.')[0], 'output_layer')}.weight"
    module, _, kind = name.rpartition(".")
    prefix = f"language_model.encoder.layers.{layer}." if legacy else f"decoder.layers.{layer}."
    if style == "core-te" and module in _FUSED_NORMS:
        return f"{prefix}{_FUSED_NORMS[module]}{kind}"
    return f"{prefix}{(_LEGACY if legacy else _CORE)[module]}.{kind}"
