"""T5 (arXiv 1910.10683): as Megatron-LM trains it, and as transformers has it, in versions 1.0 and 1.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.families.config_json import ConfigJson
from megads.families.family import Family, HuggingFace, Names

_ACTIVATIONS = {"gated-gelu": "geglu_tanh", "relu": "relu"}
"""Name of a feed_forward_proj -> our activation."""


def _read(config: ConfigJson) -> dict[str, Any]:
    activation = config.get("feed_forward_proj", "relu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise config.error(f"feed_forward_proj={activation!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    heads, layers = config.size("num_heads", 8), config.size("num_layers", 6)
    dropout = config.number("dropout_rate", 0.1)
    # transformers 5 ties the two tables of every T5 that it makes, and says of version 1.1 that nothing is scaled.
    is_scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    return {
        "num_layers": layers,
        "decoder_layers": config.size("num_decoder_layers", layers),
        "hidden_size": config.size("d_model", 512),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": config.size("d_kv", 64),
        "ffn_hidden_size": config.size("d_ff", 2048),
        "max_positions": config.size("n_positions", 512),
        "seq_length": config.size("n_positions", 512),
        "decoder_seq_length": config.size("n_positions", 512),
        "vocab_size": config.size("vocab_size", 32128),
        "normalization": "rmsnorm",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-6),
        "activation": _ACTIVATIONS[activation],
        "position_embedding": "relative",
        "relative_buckets": config.size("relative_attention_num_buckets", 32),
        "relative_distance": config.size("relative_attention_max_distance", 128),
        "bias": False,
        "tied_embeddings": is_scaled,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "init_std": 0.02,
    }


def _write(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "d_model": model.hidden_size,
        "d_kv": model.head_dim,
        "d_ff": model.ffn_hidden_size,
        "num_layers": model.num_layers,
        "num_decoder_layers": model.decoder_layers,
        "num_heads": model.num_heads,
        "n_positions": model.seq_length,
        "relative_attention_num_buckets": model.relative_buckets,
        "relative_attention_max_distance": model.relative_distance,
        "dropout_rate": model.hidden_dropout,
        "layer_norm_epsilon": model.norm_epsilon,
        "feed_forward_proj": {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[model.activation],
        "is_encoder_decoder": True,
        # The decoder of a T5 begins with padding.
        "decoder_start_token_id": more.get("decoder_start_token_id", more.get("pad_token_id", 0)),
    }


def _misfit(model: Any) -> str:
    if model.num_kv_heads != model.num_heads:
        return f"num_kv_heads={model.num_kv_heads}, it has as many as num_heads"
    if not model.decoder_layers:
        return "decoder_layers=0, it has an encoder and a decoder"
    return ""


def _attention(layer: str, name: str) -> Names:
    """Return the names of attention among the tokens of one part."""
    return (
        (f"{layer}.{name}.q", "attention.qkv", 0),
        (f"{layer}.{name}.k", "attention.qkv", 1),
        (f"{layer}.{name}.v", "attention.qkv", 2),
        (f"{layer}.{name}.o", "attention.out", None),
    )


def _mlp(layer: str) -> Names:
    return (
        (f"{layer}.layer_norm", "post_norm", None),
        (f"{layer}.DenseReluDense.wi_0", "mlp.gate_up", 0),
        (f"{layer}.DenseReluDense.wi_1", "mlp.gate_up", 1),
        (f"{layer}.DenseReluDense.wi", "mlp.up", None),
        (f"{layer}.DenseReluDense.wo", "mlp.down", None),
    )


_OWN: Names = (("layer.0.layer_norm", "input_norm", None), *_attention("layer.0", "SelfAttention"))
_CROSS: Names = (
    ("layer.1.layer_norm", "cross_norm", None),
    ("layer.1.EncDecAttention.q", "cross_attention.q", None),
    ("layer.1.EncDecAttention.k", "cross_attention.kv", 0),
    ("layer.1.EncDecAttention.v", "cross_attention.kv", 1),
    ("layer.1.EncDecAttention.o", "cross_attention.out", None),
)
T5_CLASS = HuggingFace(
    "T5ForConditionalGeneration",
    "t5",
    suits=lambda model: bool(model.decoder_layers),
    needs={
        "normalization": ("rmsnorm",),
        "position_embedding": ("relative",),
        "bias": (False,),
        "activation": tuple(_ACTIVATIONS.values()),
        "norm_position": ("before",),
        "qk_norm": ("none",),
    },
    read=_read,
    write=_write,
    outside={
        "embedding": "shared",
        "encoder_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "decoder_bias": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "layers.{last}.encoder_norm": "encoder.final_layer_norm",
        "final_norm": "decoder.final_layer_norm",
        "head": "lm_head",
    },
    layers="encoder.block",
    inside=(*_OWN, *_mlp("layer.1")),
    decoder="decoder.block",
    inside_decoder=(*_OWN, *_CROSS, *_mlp("layer.2")),
    misfit=_misfit,
)
T5 = Family(
    "encoder and decoder, spans that are cut out",
    (T5_CLASS,),
    {
        "model.normalization": "layernorm",
        "model.activation": "gelu_tanh",
        "model.position_embedding": "learned",
        "model.bias": True,
        "model.tied_embeddings": True,
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
        "data.tokenizer_type": "BertWordPieceLowerCase",
        "data.vocab_extra_ids": 100,
    },
    init_std=0.02,
    samples="t5",
)
