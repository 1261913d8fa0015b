"""From our settings to ``config.json``. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.checkpoint.convert.huggingface.dtypes import LONG
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError

TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "GPT2LMHeadModel": "gpt2"}
"""Class of transformers -> its model_type; these can be written and read."""

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")

_LLAMA: dict[str, object] = {"normalization": "rmsnorm", "activation": "swiglu", "position_embedding": "rope"}
_MISTRAL = {**_LLAMA, "bias": False}
_GPT2: dict[str, object] = {"normalization": "layernorm", "position_embedding": "learned", "bias": True}
_CAN: dict[str, dict[str, object]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "GPT2LMHeadModel": _GPT2,
}
"""What a class cannot do otherwise."""


def architecture_of(model: ModelConfig, wanted: str = "") -> str:
    """Return the class of transformers that computes what ``model`` does.

    Args:
        model: derived.
        wanted: LlamaForCausalLM or MistralForCausalLM, as it was imported; empty: the first that fits.

    Raises:
        CheckpointError: none does, or not the wanted one.
    """
    if model.position_embedding == "learned":
        _check(model, "GPT2LMHeadModel")
        return "GPT2LMHeadModel"
    # transformers' check of LlamaConfig, though head_dim is given.
    uneven = model.hidden_size % model.num_heads != 0
    chosen = wanted if wanted in ("LlamaForCausalLM", "MistralForCausalLM") else "LlamaForCausalLM"
    if uneven:
        chosen = "MistralForCausalLM"
    _check(model, chosen)
    return chosen


def _check(model: ModelConfig, architecture: str) -> None:
    for setting, needed in _CAN[architecture].items():
        if (actual := getattr(model, setting)) != needed:
            raise _cannot(architecture, f"{setting}={_text(actual)}, it has {_text(needed)}")
    if architecture == "GPT2LMHeadModel":
        if model.activation == "swiglu":
            raise _cannot(architecture, "activation=swiglu, it has gelu or gelu_tanh")
        if model.num_kv_heads != model.num_heads:
            raise _cannot(architecture, f"num_kv_heads={model.num_kv_heads}, it has as many as num_heads")
        if model.num_heads * model.head_dim != model.hidden_size:
            raise _cannot(architecture, f"head_dim={model.head_dim}, it has hidden_size / num_heads")


def _text(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _cannot(architecture: str, what: str) -> CheckpointError:
    return CheckpointError(f"no class of transformers computes this model: {architecture} has no {what}")


def config_of(
    model: ModelConfig, architecture: str, dtype: str, ids: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``config.json``, for transformers 4 and 5 alike.

    Args:
        model: derived.
        architecture: see :func:`architecture_of`.
        dtype: of the weights: fp32, bf16 or fp16.
        ids: of the tokens in :data:`SPECIAL`; those that there are not are written as null, or
            transformers would take 1 and 2.
        more: of what was imported: max_position_embeddings, sliding_window.
    """
    make = _gpt2 if architecture == "GPT2LMHeadModel" else _llama
    return {
        "architectures": [architecture],
        "model_type": TYPES[architecture],
        "dtype": LONG[dtype],
        "torch_dtype": LONG[dtype],  # for transformers 4
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std or 0.02,
        "use_cache": True,
        **{name: ids.get(name) for name in SPECIAL},
        **make(model, architecture, more),
    }


def _llama(model: ModelConfig, architecture: str, more: Mapping[str, Any]) -> dict[str, Any]:
    scaling = _scaling(model)
    biases = {"attention_bias": model.bias, "mlp_bias": model.bias}
    window = {"sliding_window": more.get("sliding_window")}
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "max_position_embeddings": more.get("max_position_embeddings", model.seq_length),
        "attention_dropout": model.attention_dropout,
        # transformers 4 reads the first two, transformers 5 the third.
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": model.rope_theta},
        **(window if architecture == "MistralForCausalLM" else biases),
    }


def _scaling(model: ModelConfig) -> dict[str, Any]:
    if model.rope_scaling == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_scaling_factor}
    if model.rope_scaling == "llama3":
        scaling |= {
            "low_freq_factor": model.rope_low_freq_factor,
            "high_freq_factor": model.rope_high_freq_factor,
            "original_max_position_embeddings": model.rope_original_positions,
        }
    return scaling


def _gpt2(model: ModelConfig, architecture: str, more: Mapping[str, Any]) -> dict[str, Any]:
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
