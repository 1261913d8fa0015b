"""The parameters of a decoder, from its settings, and of an encoder, whose layers are the same.

The settings decide, and of the family's name whether it is a decoder: any default of a family can be overridden, and a
checkpoint of a model that was imported or overridden is described as well.
"""
# ruff: noqa: D102

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

from megads.families.encoder import Encoder, embedding_of, has_final_norm, heads_of
from megads.families.encoder_decoder import has_decoder, has_output_bias, output_bias, stacks_of, tables_of
from megads.families.lora import Adapted, with_adapters
from megads.families.retro import stacks_with_neighbors
from megads.families.spec import Parameter, Spec, Stack, classifier, column, norm, row, table
from megads.families.table import FAMILIES, FamilyName


class Decoder(Encoder, Adapted, Protocol):
    """The settings that decide the parameters, declared in ``megads.config.settings.model``; derived."""

    @property
    def family(self) -> FamilyName: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn_hidden_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def vocab_multiple(self) -> int: ...
    @property
    def qk_norm(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def position_embedding(self) -> str: ...
    @property
    def bias(self) -> bool: ...
    @property
    def tied_embeddings(self) -> bool: ...
    @property
    def decoder_layers(self) -> int: ...
    @property
    def relative_buckets(self) -> int: ...
    @property
    def retro_encoder_layers(self) -> int: ...


def padded_vocab_size(model: Decoder) -> int:
    """Return ``vocab_size`` rounded up to a multiple of ``vocab_multiple``; rows of the embedding."""
    return -(-model.vocab_size // model.vocab_multiple) * model.vocab_multiple


def is_gated(activation: str) -> bool:
    """Return whether an MLP with this activation has a gate, and so two matrices that widen."""
    return activation in ("swiglu", "geglu_tanh")


def inner_width(activation: str, hidden: int) -> tuple[int, str]:
    """Return the usual inner width of the MLP, and its formula.

    With a gate two thirds of 4 HIDDEN keep the parameters of an MLP without; Megatron-LM rounds down to 64.
    """
    if is_gated(activation):
        return max(64, int(8 * hidden / 3 / 64) * 64), "8/3 HIDDEN, a multiple of 64"
    return 4 * hidden, "4 HIDDEN"


@functools.lru_cache(maxsize=64)  # a plan asks for the same model thousands of times
def spec_of(model: Decoder) -> Spec:
    """Return the parameters of a derived ``model``."""
    rows, width = padded_vocab_size(model), model.hidden_size
    embedding = [table("embedding", rows, width, "embedding")]
    if model.position_embedding == "learned":
        embedding.append(Parameter("positions.weight", (model.max_positions, width), "positions"))
    is_encoder = FAMILIES[model.family].samples == "bert"
    if is_encoder:
        embedding.extend(embedding_of(model))
    output = [] if is_encoder and not has_final_norm(model) else [*_norm("final_norm", model)]
    if not (model.tied_embeddings or model.num_classes):
        output.append(table("head", rows, width, "output"))
    if is_encoder:
        output.extend(heads_of(model, rows))
    elif model.num_classes:
        output.extend(classifier(model.num_classes, width, bias=False))
    layer = with_adapters(model, tuple(_layer(model)))
    stacks: tuple[Stack, ...] = (Stack(model.num_layers, layer),)
    usual: tuple[Parameter, ...] = ()
    if has_decoder(model):
        embedding += tables_of(model)
        output += [output_bias(rows)] if has_output_bias(model) else []
        stacks = stacks_of(model, layer)
    elif FAMILIES[model.family].samples == "retro":
        stacks, usual = stacks_with_neighbors(model, layer), layer
    return Spec(stacks, tuple(embedding), tuple(output), model.tied_embeddings and not model.num_classes, usual)


def _layer(model: Decoder) -> Iterator[Parameter]:
    width, inner, bias = model.hidden_size, model.ffn_hidden_size, model.bias
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    is_before = model.norm_position == "before"
    if is_before:
        yield from _norm("input_norm", model)
    yield from column("attention.qkv", width, (queries, keys, keys), bias=bias)
    yield from row("attention.out", width, queries, bias=bias)
    for name, joined in (("q", queries), ("k", keys)):
        if model.qk_norm == "head":
            yield from norm(f"attention.{name}_norm", model.head_dim, bias=False)
        elif model.qk_norm == "all":
            yield Parameter(f"attention.{name}_norm.weight", (joined,), "norm", 0, (joined,))
    yield from _norm("post_norm" if is_before else "attention_norm", model)
    if is_gated(model.activation):
        yield from column("mlp.gate_up", width, (inner, inner), bias=bias)
    else:
        yield from column("mlp.up", width, (inner,), bias=bias)
    yield from row("mlp.down", width, inner, bias=bias)
    if not is_before:
        yield from _norm("mlp_norm", model)


def _norm(name: str, model: Decoder) -> Iterator[Parameter]:
    return norm(name, model.hidden_size, bias=model.normalization == "layernorm")
