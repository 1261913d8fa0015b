"""Megatron's names of the parameters of GPT and Llama, BERT and T5.

::

    ours                    legacy                                       core
    embedding.weight        language_model.embedding.word_embeddings     embedding.word_embeddings
    positions.weight        language_model.embedding.position_embeddings embedding.position_embeddings
    layers.N.*              language_model.encoder.layers.N.*            decoder.layers.N.*
    final_norm              language_model.encoder.final_layernorm       decoder.final_layernorm
    head.weight             language_model.output_layer                  output_layer

In legacy files the layers of BERT have the names of GPT's. Core's stack of BERT, and that of T5's encoder, is
``encoder``. T5's decoder is ``language_model.decoder`` in legacy files and ``decoder`` in core.

Versions before 2022 say ``transformer`` for ``encoder`` and ``attention`` for ``self_attention``, later
ones ``norm`` for ``layernorm``. With Transformer Engine core keeps the norms of a layer in
the matrix behind them, as ``linear_qkv.layer_norm_weight``. The layers of a file count from 0.
"""

from __future__ import annotations

from typing import NamedTuple


class LayerName(NamedTuple):
    """A module of a layer; a name and ``weight`` or ``bias`` are a parameter's."""

    legacy: str  # empty: it has none
    core: str
    core_te: str = ""  # core with Transformer Engine; empty: as core
    imported: tuple[str, ...] = ()  # of old versions, and legacy with Transformer Engine


LAYER = {
    "input_norm": LayerName(
        *("input_layernorm.", "input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
        ("input_norm.", "self_attention.layernorm_qkv.layer_norm_"),
    ),
    "attention.qkv": LayerName(
        *("self_attention.query_key_value.", "self_attention.linear_qkv."),
        imported=("attention.query_key_value.", "self_attention.layernorm_qkv."),
    ),
    "attention.out": LayerName(
        *("self_attention.dense.", "self_attention.linear_proj."),
        imported=("attention.dense.", "self_attention.proj."),
    ),
    "post_norm": LayerName(
        *("post_attention_layernorm.", "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
        ("post_attention_norm.", "layernorm_mlp.layer_norm_"),
    ),
    # Only core has norms of each head's queries and keys.
    "attention.q_norm": LayerName("", "self_attention.q_layernorm."),
    "attention.k_norm": LayerName("", "self_attention.k_layernorm."),
    "mlp.up": LayerName("mlp.dense_h_to_4h.", "mlp.linear_fc1.", imported=("layernorm_mlp.fc1_",)),
    "mlp.down": LayerName("mlp.dense_4h_to_h.", "mlp.linear_fc2.", imported=("layernorm_mlp.fc2_",)),
}
"""Modules of a layer; a gated MLP's ``mlp.gate_up`` has the name of ``mlp.up``."""

DECODER_LAYER = {
    **LAYER,
    "cross_norm": LayerName(
        "post_attention_layernorm.", "pre_cross_attn_layernorm.", imported=("post_attention_norm.",)
    ),
    "cross_attention.q": LayerName("inter_attention.query.", "cross_attention.linear_q."),
    "cross_attention.kv": LayerName("inter_attention.key_value.", "cross_attention.linear_kv."),
    "cross_attention.out": LayerName("inter_attention.dense.", "cross_attention.linear_proj."),
    "post_norm": LayerName(
        *("post_inter_attention_layernorm.", "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
        ("post_inter_attention_norm.", "layernorm_mlp.layer_norm_"),
    ),
}
"""Modules of a layer of T5's decoder: the norm behind its own attention is that before the attention to the encoder."""

OUTSIDE = {
    "embedding": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "token_types": "embedding.tokentype_embeddings",
    "pooler.dense": "pooler.dense",
    "head": "output_layer",
}
"""Modules outside the layers, in legacy files within ``language_model``, besides ``final_layernorm``."""


class HeadName(NamedTuple):
    """A module of a head, besides ``language_model`` in legacy files."""

    legacy: str
    core: str
    imported: tuple[str, ...] = ()  # of other versions, and copies


HEADS = {
    "bert": {
        "lm_head.dense": HeadName("lm_head.dense", "lm_head.dense"),
        "lm_head.norm": HeadName("lm_head.layernorm", "lm_head.layer_norm", ("lm_head.norm",)),
        "lm_head": HeadName("lm_head", "output_layer"),
        "binary_head": HeadName("binary_head", "binary_head"),
    },
    "t5": {
        "output_bias": HeadName("lm_head", "lm_head.output_layer", ("output_layer",)),
    },
}
"""Heads of a family."""

SECOND_NAMES = {"lm_head.output_layer": "output_layer", "embedding.position_embeddings": "position_embeddings"}
"""Modules that core's T5 has again under another name."""
