"""Llama (arXiv 2302.13971, 2407.21783), and Mistral, whose weights mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from megads.families.config_json import ConfigJson, read_decoder, write_decoder
from megads.families.family import Family, HuggingFace, Names

OUTSIDE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
PROJECTIONS: Names = (
    ("self_attn.q_proj", "attention.qkv", 0),
    ("self_attn.k_proj", "attention.qkv", 1),
    ("self_attn.v_proj", "attention.qkv", 2),
    ("self_attn.o_proj", "attention.out", None),
)
HEAD_NORMS: Names = (("self_attn.q_norm", "attention.q_norm", None), ("self_attn.k_norm", "attention.k_norm", None))
MLP: Names = (
    ("mlp.gate_proj", "mlp.gate_up", 0),
    ("mlp.up_proj", "mlp.gate_up", 1),
    ("mlp.down_proj", "mlp.down", None),
)
LAYER: Names = (
    ("input_layernorm", "input_norm", None),
    *PROJECTIONS,
    ("post_attention_layernorm", "post_norm", None),
    *MLP,
)
NEEDS: dict[str, tuple[Any, ...]] = {
    "normalization": ("rmsnorm",),
    "activation": ("swiglu",),
    "position_embedding": ("rope",),
    "norm_position": ("before",),
    "qk_norm": ("none",),
}


def _read_llama(config: ConfigJson) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    if bias != config.flag("mlp_bias", False):
        raise config.error(
            f"attention_bias={bias} and mlp_bias={not bias}; megads has biases in all linear layers or in none"
        )
    return {**read_decoder(config), "bias": bias}


def _read_mistral(config: ConfigJson) -> dict[str, Any]:
    return {**read_decoder(config, positions=131072, kv_heads=8), "bias": config.flag("attention_bias", False)}


def _window(config: ConfigJson) -> int | None:
    """Return how many tokens Mistral's attention sees: MistralConfig has 4096, null means all."""
    if "sliding_window" in config.content and config.content["sliding_window"] is None:
        return None
    return config.size("sliding_window", 4096)


def _write_llama(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**write_decoder(model, more), "attention_bias": model.bias, "mlp_bias": model.bias}


def _write_mistral(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**write_decoder(model, more), "sliding_window": more.get("sliding_window")}


def _is_plain(model: Any) -> bool:
    return bool(model.position_embedding == "rope" and model.qk_norm == "none")


def _is_even(model: Any) -> bool:
    # transformers' check of LlamaConfig, though head_dim is given.
    return _is_plain(model) and model.hidden_size % model.num_heads == 0


llama_like = partial(HuggingFace, outside=OUTSIDE, layers="model.layers", inside=LAYER)
"""A class that names its modules as Llama's does."""

LLAMA_CLASS = llama_like(
    "LlamaForCausalLM",
    "llama",
    suits=_is_even,
    needs=NEEDS,
    read=_read_llama,
    write=_write_llama,
)
MISTRAL_CLASS = llama_like(
    "MistralForCausalLM",
    "mistral",
    suits=_is_plain,
    needs={**NEEDS, "bias": (False,)},
    read=_read_mistral,
    write=_write_mistral,
    window=_window,
)
LLAMA = Family("RMSNorm, SwiGLU, RoPE", (LLAMA_CLASS, MISTRAL_CLASS))
