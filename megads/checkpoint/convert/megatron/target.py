"""What is asked of an export to Megatron's files: layout, names and type, and whether Megatron has such a model."""

from __future__ import annotations

from dataclasses import dataclass

from megads.checkpoint.convert.megatron.names import Style
from megads.config.schema import ModelConfig
from megads.config.stages import split_ranks
from megads.errors import CheckpointError


@dataclass(frozen=True)
class Target:
    """Layout, names and type of an export."""

    tensor: int = 1  # tensor-parallel degree
    pipe: int = 1  # pipeline stages
    style: Style = "legacy"
    dtype: str = "fp32"  # or bf16, fp16
    iteration: int | None = None  # None: it is a ``release``
    vocab_multiple: int | None = None  # rows are padded to a multiple of this times ``tensor``; None: the model's
    split_rank: int | None = None  # of T5: the first stage of the decoder; None: the most even one

    def vocab_rows(self, model: ModelConfig) -> int:
        """Return the rows of the padded vocabulary."""
        unit = (self.vocab_multiple or model.vocab_multiple) * self.tensor
        return -(-model.vocab_size // unit) * unit


def check_target(model: ModelConfig, target: Target) -> None:
    """Raise CheckpointError, with what would work, for what Megatron's format or its models cannot express."""
    if model.family == "retro":
        raise CheckpointError("a Retro model is not written in Megatron's format; it is loaded by megads only")
    if model.decoder_layers:
        check_t5(model, target)
    elif target.split_rank is not None:
        raise CheckpointError("--split-rank is for T5, whose decoder's stages begin there; drop it")
    for what, size, degree, option in (
        ("key/value heads", model.num_kv_heads, target.tensor, "--tp"),
        ("channels of the MLP", model.ffn_hidden_size, target.tensor, "--tp"),
        *([] if model.decoder_layers else [("layers", model.num_layers, target.pipe, "--pp")]),
    ):
        if size % degree:
            fitting = ", ".join(str(each) for each in range(1, size + 1) if size % each == 0 and each <= 64)
            raise CheckpointError(f"{option} {degree} does not divide the {size} {what}; use one of {fitting}")
    for setting, has in (("qk_norm", ("none", "head")), ("norm_position", ("before",))):
        if (found := getattr(model, setting)) not in has:
            only = " or ".join(f"{setting}={each}" for each in has)
            raise CheckpointError(
                f"export to Megatron has no {setting}={found}, only {only}; use `megads checkpoint export-hf`"
            )
    if model.qk_norm == "head" and target.style == "legacy":
        raise CheckpointError("Megatron's legacy models have no qk_norm=head; use --names core or core-te")
    _check_heads(model, target)
    if target.style != "legacy" and model.activation == "gelu_tanh" and not model.bias:
        raise CheckpointError("Megatron-core has no tanh GELU without biases; use --names legacy")
    _check_rope(model, target)


def _check_rope(model: ModelConfig, target: Target) -> None:
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


def _check_heads(model: ModelConfig, target: Target) -> None:
    if model.num_classes:
        raise CheckpointError(f"export to Megatron has no head of a task, as num_classes={model.num_classes} asks for")


def check_t5(model: ModelConfig, target: Target) -> None:
    """Raise CheckpointError for what Megatron's T5 cannot be."""
    if model.position_embedding != "learned":
        raise CheckpointError(
            f"Megatron's T5 has learned positions, and this one has {model.position_embedding} ones; "
            "use `megads checkpoint export-hf`"
        )
    if model.num_kv_heads != model.num_heads:
        raise CheckpointError(f"Megatron's T5 has num_kv_heads as num_heads, {model.num_heads}; this model cannot be")
    if model.tied_embeddings and not model.bias:
        raise CheckpointError("Megatron's T5 with tied embeddings has a bias of the logits, and ADD_BIAS=0 has none")
    if target.style == "legacy" and not model.tied_embeddings:
        raise CheckpointError("Megatron's legacy T5 has tied embeddings only; use --names core")
    if target.style != "legacy" and target.pipe > 1:
        raise CheckpointError("Megatron-core's T5 has no pipeline stages; use --pp 1, or --names legacy")
    if target.split_rank is not None and not 0 < target.split_rank < target.pipe:
        raise CheckpointError(
            f"--split-rank {target.split_rank} is not between 1 and --pp {target.pipe} less 1: "
            "encoder and decoder need a stage each"
        )
    fitting = split_ranks(model, target.pipe)
    if target.pipe > 1 and split_rank_of(model, target) not in fitting:
        layers = f"{model.num_layers} layers of the encoder and {model.decoder_layers} of the decoder"
        hint = f"use --split-rank {' or '.join(map(str, fitting))}" if fitting else "use another --pp"
        raise CheckpointError(f"--pp {target.pipe} stages cannot share {layers} equally; {hint}")


def split_rank_of(model: ModelConfig, target: Target) -> int:
    """Return the first stage of T5's decoder; 0: it is in the only stage, or the model has none."""
    if target.pipe == 1 or not model.decoder_layers:
        return 0
    if target.split_rank is not None:
        return target.split_rank

    def largest(rank: int) -> float:
        return max(model.num_layers / rank, model.decoder_layers / (target.pipe - rank))

    return min(split_ranks(model, target.pipe), key=largest, default=0)


def stage_layers(model: ModelConfig, target: Target) -> list[range]:
    """Return the layers of every pipeline stage, those of T5's decoder counted on from its encoder's."""
    split = split_rank_of(model, target)
    if not split:
        count = (model.num_layers + model.decoder_layers) // target.pipe
        return [range(stage * count, (stage + 1) * count) for stage in range(target.pipe)]
    found = []
    for first, layers, stages in (
        (0, model.num_layers, split),
        (model.num_layers, model.decoder_layers, target.pipe - split),
    ):
        count = layers // stages
        found += [range(first + each * count, first + (each + 1) * count) for each in range(stages)]
    return found
