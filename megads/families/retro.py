"""Retro (arXiv 2112.04426), as Megatron-LM trains it: a decoder some of whose layers look at texts that were retrieved.

A sample is cut into chunks, and every chunk has texts that are like it, its *neighbours*. Layer 6 (with more than 15
layers 9), and every third behind it, has attention to the neighbours between its own attention and its MLP. The
first of these layers owns the encoder of the neighbours, whose layers have full attention; the first
of them looks at the chunk. The encoder's parameters are named inside that layer, ``layers.5.retriever.0...``.
"""
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from megads.families.encoder_decoder import EncoderDecoder, cross_attention
from megads.families.family import Family
from megads.families.gpt import GPT
from megads.families.spec import Parameter, Stack

EVERY = 3
"""Of so many layers one looks at neighbours, from the first such layer on."""


class Retriever(EncoderDecoder, Protocol):
    """The settings that decide these parameters, declared in ``megads.config.settings.model``; derived."""

    @property
    def retro_encoder_layers(self) -> int: ...


def first_layer(num_layers: int) -> int:
    """Return the index, from 0 on, of the first layer that looks at neighbours; a model needs one layer more."""
    return 5 if num_layers <= 15 else 8


def looks(index: int, num_layers: int) -> bool:
    """Return whether the layer with number ``index``, from 0 on, looks at neighbours."""
    first = first_layer(num_layers)
    return index >= first and (index - first) % EVERY == 0


def is_of_retriever(name: str) -> bool:
    """Return whether a parameter is of the encoder of neighbours, or of attention to them: no other decoder has it."""
    return name.split(".", 2)[-1].startswith(("retriever.", "cross_norm.", "cross_attention."))


def stacks_with_neighbors(model: Retriever, layer: tuple[Parameter, ...]) -> tuple[Stack, ...]:
    """Return the stacks of the model, whose other layers have the parameters ``layer``."""
    looking = (*layer, *cross_attention(model))
    found: list[Stack] = []
    for index in range(model.num_layers):
        this = layer
        if looks(index, model.num_layers):
            this = looking
            if index == first_layer(model.num_layers):
                this = (*looking, *_retriever(model, layer, looking))
        if found and found[-1].layer is this:
            found[-1] = replace(found[-1], num_layers=found[-1].num_layers + 1)
        else:
            found.append(Stack(1, this))
    return tuple(found)


def _retriever(model: Retriever, layer: tuple[Parameter, ...], looking: tuple[Parameter, ...]) -> Iterator[Parameter]:
    for index in range(model.retro_encoder_layers):
        for each in layer if index else looking:
            yield replace(each, name=f"retriever.{index}.{each.name}")


RETRO = Family(
    "a gpt that looks at neighbours of its chunks, Retro",
    (),
    GPT.defaults,
    init_std=GPT.init_std,
    samples="retro",
)
