"""GPT-2 and GPT-3 (arXiv 2005.14165)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.families.config_json import ConfigJson
from megads.families.family import Family, HuggingFace

_GELUS = {"gelu": "gelu"} | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
"""Name of an activation -> ours that computes the same."""


def _read(config: ConfigJson) -> dict[str, Any]:
    config.expect("scale_attn_weights", (True,), True)
    config.refuse("scale_attn_by_inverse_layer_idx", "attention is scaled by the layer, which megads does not do")
    config.refuse("add_cross_attention", "the model reads another one's output, which megads does not do")
    activation = config.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _GELUS:
        raise config.error(f"activation_function={activation!r} is not supported; {', '.join(_GELUS)} are")
    heads, hidden = config.size("n_head"), config.size("n_embd")
    if hidden % heads:
        raise config.error(f"n_embd={hidden} is not a multiple of n_head={heads}")
    positions = config.size("n_positions", 1024)
    return {
        "num_layers": config.size("n_layer"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden_size": config.size("n_inner", 4 * hidden),
        "max_positions": positions,
        "seq_length": positions,
        "vocab_size": config.size("vocab_size"),
        "normalization": "layernorm",
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "activation": _GELUS[activation],
        "position_embedding": "learned",
        "bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "hidden_dropout": config.number("resid_pdrop", 0.1),
        "attention_dropout": config.number("attn_pdrop", 0.1),
        "init_std": config.number("initializer_range", 0.02),
    }


def _write(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n_embd": model.hidden_size,
        "n_inner": model.ffn_hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_positions": model.max_positions,
        "activation_function": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
        "layer_norm_epsilon": model.norm_epsilon,
        "embd_pdrop": model.hidden_dropout,
        "resid_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
        "scale_attn_weights": True,
    }


def _misfit(model: Any) -> str:
    if model.num_kv_heads != model.num_heads:
        return f"num_kv_heads={model.num_kv_heads}, it has as many as num_heads"
    if model.num_heads * model.head_dim != model.hidden_size:
        return f"head_dim={model.head_dim}, it has hidden_size / num_heads"
    return ""


GPT2_CLASS = HuggingFace(
    "GPT2LMHeadModel",
    "gpt2",
    suits=lambda model: bool(model.position_embedding == "learned"),
    needs={
        "normalization": ("layernorm",),
        "position_embedding": ("learned",),
        "bias": (True,),
        "activation": ("gelu", "gelu_tanh"),
        "norm_position": ("before",),
        "qk_norm": ("none",),
    },
    read=_read,
    write=_write,
    outside={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    layers="transformer.h",
    inside=(
        ("ln_1", "input_norm", None),
        ("attn.c_attn", "attention.qkv", None),
        ("attn.c_proj", "attention.out", None),
        ("ln_2", "post_norm", None),
        ("mlp.c_fc", "mlp.up", None),
        ("mlp.c_proj", "mlp.down", None),
    ),
    misfit=_misfit,
    is_transposed=True,
    prefix="transformer.",
)
GPT = Family(
    "LayerNorm, GELU, learned positions",
    (GPT2_CLASS,),
    {
        "model.normalization": "layernorm",
        "model.activation": "gelu_tanh",
        "model.position_embedding": "learned",
        "model.bias": True,
        "model.tied_embeddings": True,
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
    },
    init_std=0.02,
)
