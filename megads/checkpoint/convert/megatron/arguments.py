"""The arguments that Megatron finds in a checkpoint and compares with its own. No torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megads.checkpoint.convert.megatron.names import Style
from megads.checkpoint.format.manifest import Manifest
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError


@dataclass(frozen=True)
class Target:
    """What is asked for of an export.

    Attributes:
        tensor: tensor-parallel degree.
        pipe: pipeline stages.
        style: which names.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        iteration: that Megatron is to see; None: it is a ``release``.
        vocab_multiple: the vocabulary is padded to a multiple of this times ``tensor``; None: as the model says.
    """

    tensor: int = 1
    pipe: int = 1
    style: Style = "legacy"
    dtype: str = "fp32"
    iteration: int | None = None
    vocab_multiple: int | None = None

    def vocab_rows(self, model: ModelConfig) -> int:
        """Return the rows of the padded vocabulary."""
        unit = (self.vocab_multiple or model.vocab_multiple) * self.tensor
        return -(-model.vocab_size // unit) * unit


def check_target(model: ModelConfig, target: Target) -> None:
    """Refuse what Megatron's format or its models cannot express.

    Raises:
        CheckpointError: with what would work.
    """
    for what, size, degree, option in (
        ("key/value heads", model.num_kv_heads, target.tensor, "--tp"),
        ("channels of the MLP", model.ffn_hidden_size, target.tensor, "--tp"),
        ("layers", model.num_layers, target.pipe, "--pp"),
    ):
        if size % degree:
            fitting = ", ".join(str(each) for each in range(1, size + 1) if size % each == 0 and each <= 64)
            raise CheckpointError(f"{option} {degree} does not divide the {size} {what}; use one of {fitting}")
    for setting, has in (("qk_norm", "none"), ("norm_position", "before")):
        if (found := getattr(model, setting)) != has:
            raise CheckpointError(
                f"export to Megatron has no {setting}={found}, only {setting}={has}; use `megads checkpoint export-hf`"
            )
    if target.style != "legacy" and model.activation == "gelu_tanh" and not model.bias:
        raise CheckpointError("Megatron-core has no tanh GELU without biases; use --names legacy")
    if model.rope_scaling == "llama3":
        fixed = (model.rope_low_freq_factor, model.rope_high_freq_factor, model.rope_original_positions)
        if target.style == "legacy" or fixed != (1.0, 4.0, 8192):
            raise CheckpointError(
                "Megatron knows llama3's rope scaling with factors 1 and 4 of 8192 positions only, in its core models; "
                "use --names core for such a model"
            )
    if model.rope_scaling == "linear" and model.rope_scaling_factor != int(model.rope_scaling_factor):
        raise CheckpointError(
            f"Megatron scales rotary positions by integers, not by {model.rope_scaling_factor:g}; "
            "this model cannot be exported"
        )


def namespace(model: ModelConfig, target: Target, manifest: Manifest) -> argparse.Namespace:
    """Return the arguments that Megatron checks, takes with ``--use-checkpoint-args``, and needs in its tools."""
    progress, data = manifest.progress, manifest.settings.get("data", {})
    settings = manifest.settings.get("model", {})
    return argparse.Namespace(
        num_layers=model.num_layers,
        encoder_num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_heads,
        kv_channels=model.head_dim,
        group_query_attention=model.num_kv_heads != model.num_heads,
        num_query_groups=model.num_kv_heads if model.num_kv_heads != model.num_heads else 1,
        seq_length=model.seq_length,
        max_position_embeddings=model.max_positions,
        **_positions(model),
        normalization="RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        norm_epsilon=model.norm_epsilon,
        layernorm_epsilon=model.norm_epsilon,
        apply_layernorm_1p=False,
        apply_query_key_layer_scaling=False,
        apply_residual_connection_post_layernorm=False,
        swiglu=model.activation == "swiglu",
        openai_gelu=model.activation == "gelu_tanh" and not model.bias,
        bias_gelu_fusion=model.activation == "gelu_tanh" and model.bias,
        squared_relu=False,
        onnx_safe=None,
        add_bias_linear=model.bias,
        add_qkv_bias=False,
        untie_embeddings_and_output_weights=not model.tied_embeddings,
        vocab_size=model.vocab_size - (data.get("tokenizer_type") == "NullTokenizer"),
        padded_vocab_size=target.vocab_rows(model),
        make_vocab_size_divisible_by=target.vocab_multiple or model.vocab_multiple,
        tokenizer_type=data.get("tokenizer_type"),
        tensor_model_parallel_size=target.tensor,
        pipeline_model_parallel_size=target.pipe,
        virtual_pipeline_model_parallel_size=None,
        num_layers_per_virtual_pipeline_stage=None,
        data_parallel_random_init=False,
        **{key: settings[key] for key in ("hidden_dropout", "attention_dropout") if key in settings},
        ckpt_format="torch",
        use_distributed_optimizer=False,
        num_experts=None,
        expert_model_parallel_size=1,
        **_types(target),
        transformer_impl="transformer_engine" if target.style == "core-te" else "local",
        use_mcore_models=target.style != "legacy",
        iteration=target.iteration or 0,
        consumed_train_samples=int(progress.get("consumed_samples", 0)),
        consumed_valid_samples=0,
    )


def _positions(model: ModelConfig) -> Mapping[str, Any]:
    rope = model.position_embedding == "rope"
    linear, llama3 = (model.rope_scaling == kind for kind in ("linear", "llama3"))
    return {
        "add_position_embedding": not rope,
        "position_embedding_type": "rope" if rope else "learned_absolute",
        "use_rotary_position_embeddings": rope,
        "rotary_percent": 1.0,
        "rotary_base": int(model.rope_theta) if model.rope_theta == int(model.rope_theta) else model.rope_theta,
        "rotary_interleaved": False,
        "rotary_seq_len_interpolation_factor": int(model.rope_scaling_factor) if linear else None,
        "use_rope_scaling": llama3,
        "rope_scaling_factor": model.rope_scaling_factor if llama3 else 8.0,
    }


def _types(target: Target) -> Mapping[str, Any]:
    from megads.checkpoint.convert.torch_files.write import DTYPES

    return {
        "params_dtype": DTYPES[target.dtype],
        "bf16": target.dtype == "bf16",
        "fp16": target.dtype == "fp16",
    }
