"""Qwen3, dense (arXiv 2505.09388): Llama with RMSNorm of each head's queries and keys, and a head width of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.families.config_json import ConfigJson, read_decoder, write_decoder
from megads.families.family import Family
from megads.families.llama import HEAD_NORMS, LAYER, NEEDS, llama_like


def _read(config: ConfigJson) -> dict[str, Any]:
    config.refuse("attention_bias", "biases of the attention alone; megads has biases in all linear layers or in none")
    config.refuse("use_sliding_window", "attention within a window, which megads does not do")
    read = read_decoder(config, positions=32768, kv_heads=32, head_dim=128)
    return {**read, "bias": False, "qk_norm": "head"}


def _write(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    window = {"use_sliding_window": False, "sliding_window": None}
    return {**write_decoder(model, more), "attention_bias": False, **window}


QWEN3_CLASS = llama_like(
    "Qwen3ForCausalLM",
    "qwen3",
    suits=lambda model: bool(model.position_embedding == "rope" and model.qk_norm == "head"),
    needs={**NEEDS, "bias": (False,), "qk_norm": ("head",)},
    read=_read,
    write=_write,
    inside=(*LAYER, *HEAD_NORMS),
)
QWEN3 = Family(
    "Llama with QK norm",
    (QWEN3_CLASS,),
    {"model.qk_norm": "head", "model.rope_theta": 1e6, "model.norm_epsilon": 1e-6},
    init_std=0.02,
)
