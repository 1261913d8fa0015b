"""The model that a Megatron checkpoint is of: from its arguments, its shapes, and what the user says. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from megads.checkpoint.convert.megatron.names import IMPORTED
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.decoder import is_gated

ROPE, LEARNED = "rope", "learned"
_POSITIONS = {
    **{"rope": ROPE, "rotary": ROPE, 1: ROPE},
    **{"learned_absolute": LEARNED, "absolute": LEARNED, 2: LEARNED},
    **{"alibi": "alibi", 3: "alibi", "none": "none", "relative": "relative"},
}
"""BigScience's enum counts rotary, absolute, alibi from 1."""

_UNSUPPORTED = {
    "apply_layernorm_1p": "norms whose weight is added to 1",
    "layernorm_zero_centered_gamma": "norms whose weight is added to 1",
    "embed_layernorm": "a norm of the embedding",
    "rotary_interleaved": "rotary positions that pair neighbouring channels",
    "apply_residual_connection_post_layernorm": "residuals that start after the norm",
    "multi_latent_attention": "latent attention",
    "add_qkv_bias": "biases of queries, keys and values only",
    "squared_relu": "the squared ReLU",
    "quick_geglu": "the quick GEGLU",
    "geglu": "GEGLU",
    "glu_activation": "BigScience's gated MLPs, whose halves are the other way round",
    "no_rope_freq": "layers without rotary positions",
    "window_size": "sliding-window attention",
    "parallel_attn_mlp": "parallel attention and MLP",
}
"""Arguments for what megads does not have."""


@dataclass(frozen=True)
class ShapeFacts:
    """What the shapes of the whole tensors say."""

    num_layers: int  # of T5 the encoder's
    hidden_size: int
    vocab_rows: int
    positions: int | None
    qkv_rows: int
    fc1_rows: int  # of the first matrix of the MLP
    ffn_hidden_size: int
    bias: bool
    norm_bias: bool
    has_head: bool
    is_encoder: bool = False  # BERT's
    decoder_layers: int = 0  # T5's
    is_single: bool = True  # one pipeline stage
    qk_norm: bool = False  # of each head
    token_types: int = 0
    binary_head: bool = False


def model_of(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any]) -> tuple[ModelConfig, list[str]]:
    """Return the model, and a line per assumption.

    ``stated`` are settings of the model that the user gave.

    Raises:
        CheckpointError: megads has no such model, or more must be stated.
    """
    notes: list[str] = []
    _reject(args, shapes)
    values: dict[str, Any] = {
        "num_layers": shapes.num_layers,
        "hidden_size": shapes.hidden_size,
        "ffn_hidden_size": shapes.ffn_hidden_size,
        "bias": shapes.bias,
        "tied_embeddings": _is_tied(args, shapes),
        "normalization": _normalization(args, shapes, stated),
        "norm_epsilon": _number(args, "norm_epsilon", "layernorm_epsilon", default=1e-5),
        "seq_length": _number(args, "seq_length", "max_position_embeddings", default=shapes.positions or 2048),
        "vocab_multiple": _number(args, "make_vocab_size_divisible_by", default=128),
        **_heads(args, shapes, stated),
        **_positions(args, shapes, stated),
        **_activation(args, shapes, stated),
    }
    values["vocab_size"] = _vocabulary(args, shapes, stated, notes)
    values["family"] = "llama" if values["position_embedding"] == ROPE else "gpt"
    if shapes.qk_norm:
        values |= {"qk_norm": "head", "family": "qwen3" if values["family"] == "llama" else "gpt"}
    if shapes.is_encoder:
        heads = {"token_types": shapes.token_types, "binary_head": shapes.binary_head}
        values |= {"family": "bert", "tied_embeddings": True, **heads}
    if shapes.decoder_layers:
        values |= _encoder_decoder(args, shapes, values)
    values |= {key: value for key, value in stated.items() if key != "num_kv_heads"}
    values["max_positions"] = shapes.positions or values["seq_length"]
    if not args:
        notes.append(
            "holds no arguments: norm epsilon "
            f"{values['norm_epsilon']:g}, activation {values['activation']}, {values['position_embedding']} positions"
            + (f" of base {values['rope_theta']:g}" if values["position_embedding"] == ROPE else "")
            + "; state what differs"
        )
    try:
        return ModelConfig(**values), notes
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"its {first['loc'][0]} is {first['input']!r}: {first['msg'].lower()}") from None


def _reject(args: Mapping[str, Any], shapes: ShapeFacts) -> None:
    for name, what in _UNSUPPORTED.items():
        if args.get(name):
            raise CheckpointError(f"has {name}, {what}, which megads has not; it imports {IMPORTED}")
    said = args.get("qk_layernorm")
    if said is not None and bool(said) != shapes.qk_norm:
        held = "norms of queries and keys" if shapes.qk_norm else "no norms of queries and keys"
        raise CheckpointError(
            f"its arguments say qk_layernorm={said}, its files hold {held}; the checkpoint is incomplete"
        )
    if args.get("num_experts") not in (None, 0, 1, [1]):
        raise CheckpointError(f"has num_experts={args['num_experts']}; megads imports {IMPORTED}")
    if (args.get("rotary_percent") or 1.0) != 1.0:
        raise CheckpointError(
            f"has rotary_percent={args['rotary_percent']}; megads rotates all channels of a head only"
        )
    sizes = {"num_layers": shapes.num_layers, "hidden_size": shapes.hidden_size}
    if shapes.decoder_layers:
        sizes["decoder_num_layers"] = shapes.decoder_layers
    for name, found in sizes.items():
        if args.get(name) not in (None, found):
            raise CheckpointError(
                f"its arguments say {name}={args[name]}, its files hold {found}; the checkpoint is incomplete"
            )


def _number(args: Mapping[str, Any], *names: str, default: float) -> Any:
    return next((args[name] for name in names if isinstance(args.get(name), int | float)), default)


def _is_tied(args: Mapping[str, Any], shapes: ShapeFacts) -> bool:
    untied = args.get("untie_embeddings_and_output_weights")
    # Of one stage core has an output weight only where it is not tied.
    if shapes.is_encoder and (untied or (untied is None and shapes.has_head and shapes.is_single)):
        raise CheckpointError("has an output_layer of its own, and a BERT of megads ties it to the embedding")
    if untied is True and not shapes.has_head:
        raise CheckpointError("has no output_layer, although its arguments say that it is not tied")
    return not (untied if isinstance(untied, bool) else shapes.has_head)


def _encoder_decoder(args: Mapping[str, Any], shapes: ShapeFacts, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what T5 has otherwise than ``values``."""
    if values["position_embedding"] != LEARNED:
        raise CheckpointError(f"has {values['position_embedding']} positions; of Megatron's T5 megads has learned ones")
    if values["num_kv_heads"] != values["num_heads"]:
        raise CheckpointError(f"has {values['num_kv_heads']} key/value heads of {values['num_heads']}; T5 shares none")
    length = _number(args, "encoder_seq_length", default=values["seq_length"])
    decoder = _number(args, "decoder_seq_length", default=-(-length // 2))
    return {
        "family": "t5",
        "decoder_layers": shapes.decoder_layers,
        "seq_length": length,
        "decoder_seq_length": decoder,
    }


def _normalization(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any]) -> str:
    found = "layernorm" if shapes.norm_bias else "rmsnorm"
    said = stated.get("normalization") or str(args.get("normalization") or found).lower()
    if said != found:
        raise CheckpointError(f"its norms have {'' if shapes.norm_bias else 'no '}biases: they are {found}, not {said}")
    return found


def _heads(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any]) -> dict[str, int]:
    heads = stated.get("num_heads") or _number(args, "num_attention_heads", default=0)
    if not heads:
        raise CheckpointError("does not say its number of heads; state it with --num-heads")
    width = stated.get("head_dim") or _number(args, "kv_channels", default=0) or shapes.hidden_size // heads
    keys = (shapes.qkv_rows // width - heads) // 2
    if keys < 1 or (heads + 2 * keys) * width != shapes.qkv_rows or heads % keys:
        raise CheckpointError(
            f"the {shapes.qkv_rows} rows of its queries, keys and values do not fit {heads} heads of {width} channels; "
            "state --num-heads and --head-dim"
        )
    if stated.get("num_kv_heads", keys) != keys:
        raise CheckpointError(f"has {keys} key/value heads by its shapes, not {stated['num_kv_heads']}")
    return {"num_heads": heads, "num_kv_heads": keys, "head_dim": width}


def _positions(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any]) -> dict[str, Any]:
    said = args.get("position_embedding_type")
    said = getattr(said, "last", said)
    unsaid = LEARNED if shapes.positions else ROPE
    kind = stated.get("position_embedding") or (unsaid if said is None else _POSITIONS.get(said, str(said)))
    if args.get("use_alibi_position_embeddings") or args.get("use_alibi"):
        kind = "alibi"
    if args.get("use_rotary_position_embeddings") and not stated.get("position_embedding"):
        kind = ROPE
    if kind not in (ROPE, LEARNED):
        raise CheckpointError(f"has {kind} positions; megads has rotary and learned ones")
    if (kind == LEARNED) != (shapes.positions is not None):
        table = "a table" if shapes.positions else "no table"
        raise CheckpointError(f"holds {table} of positions, although they should be {kind}")
    if kind == LEARNED:
        return {"position_embedding": LEARNED}
    found: dict[str, Any] = {
        "position_embedding": ROPE,
        "rope_theta": float(_number(args, "rotary_base", "rope_theta", default=10000.0)),
    }
    if args.get("use_rope_scaling"):
        factor = float(_number(args, "rope_scaling_factor", default=8.0))
        found |= {"rope_scaling": "llama3", "rope_scaling_factor": factor}
    elif args.get("rotary_seq_len_interpolation_factor"):
        factor = float(args["rotary_seq_len_interpolation_factor"])
        found |= {"rope_scaling": "linear", "rope_scaling_factor": factor} if factor != 1 else {}
    return found


def _activation(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any]) -> dict[str, str]:
    gated = shapes.fc1_rows == 2 * shapes.ffn_hidden_size
    if not gated and shapes.fc1_rows != shapes.ffn_hidden_size:
        raise CheckpointError(f"its MLP widens to {shapes.fc1_rows}, and narrows from {shapes.ffn_hidden_size}")
    # Megatron's fused GELU is the tanh approximation, and needs a bias.
    fused = args.get("bias_gelu_fusion", True) and shapes.bias
    plain = "gelu_tanh" if fused or args.get("openai_gelu") else "gelu"
    kind = stated.get("activation") or ("swiglu" if gated else plain)
    if is_gated(kind) != gated:
        raise CheckpointError(f"its MLP is {'' if gated else 'not '}gated, and so cannot be {kind}")
    return {"activation": kind}


def _vocabulary(args: Mapping[str, Any], shapes: ShapeFacts, stated: Mapping[str, Any], notes: list[str]) -> int:
    size = stated.get("vocab_size", _said_tokens(args))
    if size is None:
        notes.append(
            f"does not say its vocabulary size: all {shapes.vocab_rows} rows of the embedding are "
            "used, padding included; state --vocab-size"
        )
        return shapes.vocab_rows
    if not 0 < size <= shapes.vocab_rows:
        raise CheckpointError(f"its vocabulary has {shapes.vocab_rows} rows, not {size}; state another --vocab-size")
    return size


def _said_tokens(args: Mapping[str, Any]) -> int | None:
    if isinstance(args.get("true_vocab_size"), int):
        return int(args["true_vocab_size"])
    if not isinstance(args.get("vocab_size"), int):
        return None
    # A NullTokenizer's --vocab-size does not count the end of documents.
    return int(args["vocab_size"]) + (args.get("tokenizer_type") == "NullTokenizer")
