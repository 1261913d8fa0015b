"""The conventions of a run: everything by name that decides what function its weights are, and how it is computed.

Two runs with the same weights and the same conventions give the same outputs, except for rounding. Most follow from
settings; some are a choice of this code that another version or program may have made otherwise (which channels a
rotation pairs, where the gate of an MLP lies). A checkpoint keeps the values of all, so that a change has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megads.families.decoder import is_gated
from megads.families.table import FAMILIES

Value = str | int | float | bool
TOKENIZER = "tokenizer"
"""The convention whose value is the digest of the tokenizer's content; not derived from settings."""


def _always(run: Any) -> bool:
    return True


def _has_rope(run: Any) -> bool:
    return bool(run.model.position_embedding == "rope")


def _is_scaled(run: Any) -> bool:
    return _has_rope(run) and run.model.rope_scaling != "none"


def _is_llama3(run: Any) -> bool:
    return _has_rope(run) and run.model.rope_scaling == "llama3"


def _is_relative(run: Any) -> bool:
    return bool(run.model.position_embedding == "relative")


def _is_retro(run: Any) -> bool:
    return FAMILIES[run.model.family].samples == "retro"


def _has_adapters(run: Any) -> bool:
    return bool(run.model.lora_rank)


@dataclass(frozen=True)
class Convention:
    """One convention.

    Attributes:
        key: its name in a checkpoint and in ``ALLOW_CHANGES``.
        text: what it is, in words.
        setting: the dotted setting that decides it; empty: the code does.
        of: returns the value of a derived run.
        applies: whether it says anything about a run.
        keeps_shapes: whether weights of another value have the same shapes, so that they can be loaded.
        is_of_run: whether it is how a run trains and not what its weights mean, so that a new run may differ.
    """

    key: str
    text: str
    setting: str
    of: Callable[[Any], Value]
    applies: Callable[[Any], bool] = _always
    keeps_shapes: bool = True
    is_of_run: bool = False


def _setting(
    name: str,
    text: str,
    applies: Callable[[Any], bool] = _always,
    *,
    keeps_shapes: bool = True,
    is_of_run: bool = False,
) -> Convention:
    section, _, key = name.partition(".")

    def of(run: Any) -> Value:
        value: Value = getattr(getattr(run, section), key)
        return value

    return Convention(key, text, name, of, applies, keeps_shapes, is_of_run)


def _code(key: str, text: str, of: Callable[[Any], Value], applies: Callable[[Any], bool] = _always) -> Convention:
    return Convention(key, text, "", of, applies)


_MASKS = {
    "causal": "a token attends to itself and those before it",
    "bert": "a token attends to all real tokens of its row",
    "t5": "the encoder's to all real tokens, the decoder's to those before them and to all of the encoder's",
    "retro": "a token attends to those before it, a chunk to the neighbours of the chunk before",
}
_RESIDUALS = {"before": "x + f(norm(x))", "after": "x + norm(f(x))", "behind_sum": "norm(x + f(x))"}
_NORMS = {
    "rmsnorm": "x / sqrt(mean(x^2) + epsilon) * weight, in float32",
    "layernorm": "(x - mean) / sqrt(var + epsilon) * weight + bias, in float32",
}


def _output_scale(run: Any) -> Value:
    is_scaled = FAMILIES[run.model.family].samples == "t5" and run.model.tied_embeddings
    return "1/sqrt(HIDDEN)" if is_scaled else "1"


CONVENTIONS: tuple[Convention, ...] = (
    _code("samples", "kind of samples", lambda run: FAMILIES[run.model.family].samples),
    _setting("model.num_heads", "query heads"),
    _setting("model.num_kv_heads", "key/value heads", keeps_shapes=False),
    _setting("model.head_dim", "width of a head"),
    _setting("model.vocab_size", "vocabulary", keeps_shapes=False),
    _code("vocab_padding", "probability of padding rows of the vocabulary", lambda run: "none"),
    _setting("model.tied_embeddings", "output layer tied to the embedding", keeps_shapes=False),
    _code("output_scale", "factor of what a tied output layer reads", _output_scale),
    _setting("model.position_embedding", "kind of positions", keeps_shapes=False),
    _setting("model.rope_theta", "base of the rotary frequencies", _has_rope),
    _setting("model.rope_scaling", "scaling of the rotary frequencies", _has_rope),
    _setting("model.rope_scaling_factor", "factor of the scaling of rotary frequencies", _is_scaled),
    _setting("model.rope_low_freq_factor", "rotations below which a frequency is scaled", _is_llama3),
    _setting("model.rope_high_freq_factor", "rotations above which a frequency is not scaled", _is_llama3),
    _setting("model.rope_original_positions", "original context of the scaling", _is_llama3),
    _code("rope_pairs", "channels of a head that rotate together", lambda run: "i with i + HEAD_DIM/2", _has_rope),
    _code("rope_channels", "channels of a head that rotate", lambda run: "all", _has_rope),
    _setting("model.relative_buckets", "buckets of relative positions", _is_relative, keeps_shapes=False),
    _setting("model.relative_distance", "distance from which relative positions share a bucket", _is_relative),
    _setting("model.normalization", "kind of norm", keeps_shapes=False),
    _code("norm_form", "form of the norm", lambda run: _NORMS[run.model.normalization]),
    _setting("model.norm_epsilon", "epsilon of the norms"),
    _setting("model.norm_position", "position of the norms", keeps_shapes=False),
    _code("residual", "form of a residual branch", lambda run: _RESIDUALS[run.model.norm_position]),
    _setting("model.qk_norm", "norm of queries and keys", keeps_shapes=False),
    _code(
        "qk_norm_place",
        "place of the norm of queries and keys",
        lambda run: "before they rotate",
        lambda run: _has_rope(run) and run.model.qk_norm != "none",
    ),
    _code("softmax_scale", "scale of attention scores", lambda run: "1" if _is_relative(run) else "1/sqrt(HEAD_DIM)"),
    _code("attention_mask", "attention mask", lambda run: _MASKS[FAMILIES[run.model.family].samples]),
    _setting("model.activation", "activation of the MLP"),
    _code(
        "gate",
        "gate of the MLP",
        lambda run: "activation(first half of the rows) * second half",
        lambda run: is_gated(run.model.activation),
    ),
    _setting("model.bias", "biases in the linear layers", keeps_shapes=False),
    _setting("model.token_types", "kinds of tokens with an embedding", keeps_shapes=False),
    _setting("model.num_classes", "outputs of a classification head", keeps_shapes=False),
    _setting("model.lora_rank", "rank of the adapters", _has_adapters, keeps_shapes=False),
    _setting("model.lora_alpha", "scale of the adapters, times LORA_RANK", _has_adapters),
    _setting("model.lora_targets", "matrices with adapters", _has_adapters, keeps_shapes=False),
    _setting("model.retro_chunk_length", "tokens of a chunk", _is_retro),
    _setting("model.retro_retrieved_chunks", "chunks of a neighbour", _is_retro),
    _setting("data.reset_position_ids", "positions restart after an end-of-document token", is_of_run=True),
    _setting("data.reset_attention_mask", "attention stays inside a document", is_of_run=True),
    _setting("data.eod_mask_loss", "no loss behind an end-of-document token", is_of_run=True),
    _setting("train.dtype", "dtype of weights and activations", is_of_run=True),
    Convention("dtype_of_masters", "dtype of the master weights", "", lambda run: "fp32", is_of_run=True),
    Convention(TOKENIZER, "content of the tokenizer", "data.tokenizer_model", lambda run: "", lambda run: False),
)
"""All conventions, those of the model first."""

BY_KEY: Mapping[str, Convention] = {each.key: each for each in CONVENTIONS}


def conventions_of(run: Any, tokenizer: str = "") -> dict[str, Value]:
    """Return the conventions of a derived ``run`` by key; those that say nothing about it are missing.

    ``tokenizer``: digest of its content; empty: not known.
    """
    found = {each.key: each.of(run) for each in CONVENTIONS if each.applies(run)}
    return {**found, **({TOKENIZER: tokenizer} if tokenizer else {})}


@dataclass(frozen=True)
class Change:
    """A convention that two runs do not share."""

    convention: Convention
    was: Value
    now: Value


def changes_between(was: Mapping[str, Any], now: Mapping[str, Value]) -> list[Change]:
    """Return the conventions that are in both and differ.

    One that is missing in either says nothing about that one, or is newer than it; of a part that only one has
    (rotary positions, adapters), the convention that decides the part differs.
    """
    return [
        Change(each, was[each.key], now[each.key])
        for each in CONVENTIONS
        if each.key in was and each.key in now and was[each.key] != now[each.key]
    ]
