"""What an encoder with a decoder (T5, arXiv 1910.10683) has besides a decoder's parameters.

The layers of the encoder come first. The last of them normalises what the decoder looks at, so it has one norm more;
every layer of the decoder has attention to it between its own attention and its MLP. Both read one embedding, and
one table of learned positions; relative positions are a table for each of the two, ``[buckets, heads]``.
"""
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from megads.families.spec import Parameter, Stack, column, norm, row


class EncoderDecoder(Protocol):
    """The settings that decide these parameters, declared in ``megads.config.settings.model``; derived."""

    @property
    def num_layers(self) -> int: ...
    @property
    def decoder_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def normalization(self) -> str: ...
    @property
    def position_embedding(self) -> str: ...
    @property
    def relative_buckets(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def tied_embeddings(self) -> bool: ...


def has_decoder(model: EncoderDecoder) -> bool:
    """Return whether the model is an encoder with a decoder."""
    return model.decoder_layers > 0


def stacks_of(model: EncoderDecoder, layer: tuple[Parameter, ...]) -> tuple[Stack, ...]:
    """Return the stacks of the model, whose encoder's layers have the parameters ``layer``."""
    last = Stack(1, (*layer, *_norm("encoder_norm", model)))
    others = (Stack(model.num_layers - 1, layer),) if model.num_layers > 1 else ()
    return *others, last, Stack(model.decoder_layers, (*layer, *cross_attention(model)))


def tables_of(model: EncoderDecoder) -> Iterator[Parameter]:
    """Yield the tables of relative positions."""
    if model.position_embedding == "relative":
        for name in ("encoder_bias", "decoder_bias"):
            shape = model.relative_buckets, model.num_heads
            yield Parameter(f"{name}.weight", shape, "positions", 1, (model.num_heads,))


def has_output_bias(model: EncoderDecoder) -> bool:
    """Return whether the logits have a bias for every token: where the embedding gives them, in Megatron's form."""
    return model.tied_embeddings and model.bias


def output_bias(rows: int) -> Parameter:
    """Return the bias of the logits; ``rows`` are those of the embedding."""
    return Parameter("output_bias.bias", (rows,), "bias", 0, (rows,))


def cross_attention(model: EncoderDecoder) -> Iterator[Parameter]:
    """Yield what a layer has that attends to other tokens than its own, and the norm before it."""
    width, bias = model.hidden_size, model.bias
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    yield from _norm("cross_norm", model)
    yield from column("cross_attention.q", width, (queries,), bias=bias)
    yield from column("cross_attention.kv", width, (keys, keys), bias=bias)
    yield from row("cross_attention.out", width, queries, bias=bias)


def _norm(name: str, model: EncoderDecoder) -> Iterator[Parameter]:
    return norm(name, model.hidden_size, bias=model.normalization == "layernorm")
