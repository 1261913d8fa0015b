"""OLMo 2 (arXiv 2501.00656): norms behind attention and MLP, and RMSNorm over all heads of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.families.config_json import ConfigJson, read_decoder, write_decoder
from megads.families.family import Family
from megads.families.llama import HEAD_NORMS, MLP, NEEDS, PROJECTIONS, llama_like

_OURS = {"bias": False, "qk_norm": "all", "norm_position": "after"}


def _read(config: ConfigJson) -> dict[str, Any]:
    config.refuse("attention_bias", "biases of the attention alone; megads has biases in all linear layers or in none")
    return {**read_decoder(config), "norm_epsilon": config.number("rms_norm_eps", 1e-5), **_OURS}


def _write(model: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**write_decoder(model, more), "attention_bias": False}


def _misfit(model: Any) -> str:
    if model.num_heads * model.head_dim != model.hidden_size:
        return f"head_dim={model.head_dim}, it has hidden_size / num_heads"
    return ""


OLMO2_CLASS = llama_like(
    "Olmo2ForCausalLM",
    "olmo2",
    suits=lambda model: bool(model.position_embedding == "rope" and model.qk_norm == "all"),
    needs={**NEEDS, **{name: (value,) for name, value in _OURS.items()}},
    read=_read,
    write=_write,
    inside=(
        *PROJECTIONS,
        *HEAD_NORMS,
        ("post_attention_layernorm", "attention_norm", None),
        *MLP,
        ("post_feedforward_layernorm", "mlp_norm", None),
    ),
    misfit=_misfit,
)
OLMO2 = Family(
    "Llama with norms after attention and MLP, and QK norm over all heads",
    (OLMO2_CLASS,),
    {
        "model.norm_position": "after",
        "model.qk_norm": "all",
        "model.rope_theta": 500000.0,
        "model.norm_epsilon": 1e-6,
    },
    init_std=0.02,
)
