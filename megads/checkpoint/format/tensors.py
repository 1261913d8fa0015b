"""The parameters of a model: names, shapes and how they are cut. The same as the modules', without torch."""

from __future__ import annotations

from collections.abc import Iterator

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.config.schema import ModelConfig
from megads.config.sizes import padded_vocab_size


def parameters_of(model: ModelConfig) -> dict[str, ShardLayout]:
    """Return every parameter of a derived ``model`` by its name in ``megads.models.gpt.GPT``, layer by layer."""
    rows, width = padded_vocab_size(model), model.hidden_size
    found = {"embedding.weight": ShardLayout((rows, width), 0, (rows,))}
    if model.position_embedding == "learned":
        found["positions.weight"] = ShardLayout((model.max_positions, width))
    for layer in range(model.num_layers):
        found |= {f"layers.{layer}.{name}": cut for name, cut in _layer(model)}
    found |= dict(_norm("final_norm", model))
    if not model.tied_embeddings:
        found["head.weight"] = ShardLayout((rows, width), 0, (rows,))
    return found


def _layer(model: ModelConfig) -> Iterator[tuple[str, ShardLayout]]:
    width, inner = model.hidden_size, model.ffn_hidden_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    yield from _norm("input_norm", model)
    yield from _column("attention.qkv", model, width, (queries, keys, keys))
    yield from _row("attention.out", model, queries)
    yield from _norm("post_norm", model)
    if model.activation == "swiglu":
        yield from _column("mlp.gate_up", model, width, (inner, inner))
    else:
        yield from _column("mlp.up", model, width, (inner,))
    yield from _row("mlp.down", model, inner)


def _norm(name: str, model: ModelConfig) -> Iterator[tuple[str, ShardLayout]]:
    yield f"{name}.weight", ShardLayout((model.hidden_size,))
    if model.normalization == "layernorm":
        yield f"{name}.bias", ShardLayout((model.hidden_size,))


def _column(name: str, model: ModelConfig, width: int, parts: tuple[int, ...]) -> Iterator[tuple[str, ShardLayout]]:
    yield f"{name}.weight", ShardLayout((sum(parts), width), 0, parts)
    if model.bias:
        yield f"{name}.bias", ShardLayout((sum(parts),), 0, parts)


def _row(name: str, model: ModelConfig, inner: int) -> Iterator[tuple[str, ShardLayout]]:
    yield f"{name}.weight", ShardLayout((model.hidden_size, inner), 1, (inner,))
    if model.bias:
        yield f"{name}.bias", ShardLayout((model.hidden_size,))
