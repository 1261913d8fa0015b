"""What an encoder like BERT (arXiv 1810.04805) has besides a decoder's parameters: types of tokens, norms, heads.

The masked-LM head changes every token by ``norm(gelu(dense(x)))`` and projects it onto the vocabulary, with
the embedding's rows and a bias for each; the pooler is ``tanh(dense(x))`` of a sample's first token, from which the
binary head tells whether the two halves of its text are exchanged.
"""
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from megads.families.spec import Parameter, classifier, norm


class Encoder(Protocol):
    """The settings that decide these parameters, declared in ``megads.config.settings.model``; derived."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def norm_position(self) -> str: ...
    @property
    def normalization(self) -> str: ...
    @property
    def token_types(self) -> int: ...
    @property
    def binary_head(self) -> bool: ...
    @property
    def num_classes(self) -> int: ...


def has_final_norm(model: Encoder) -> bool:
    """Return whether the last layer's output is normalised: where layers have norms behind each sum, it already is."""
    return model.norm_position != "behind_sum"


def embedding_of(model: Encoder) -> Iterator[Parameter]:
    """Yield what is added to the embedding of a token and its position, and the norm of the sum."""
    if model.token_types:
        yield Parameter("token_types.weight", (model.token_types, model.hidden_size), "positions")
    if not has_final_norm(model):
        yield from norm("embedding_norm", model.hidden_size, bias=model.normalization == "layernorm")


def heads_of(model: Encoder, rows: int) -> Iterator[Parameter]:
    """Yield the parameters of the heads; ``rows`` are those of the embedding."""
    width = model.hidden_size
    if model.num_classes:
        yield from _dense("pooler.dense", width, width)
        yield from classifier(model.num_classes, width, bias=True)
        return
    yield from _dense("lm_head.dense", width, width)
    yield from norm("lm_head.norm", width, bias=model.normalization == "layernorm")
    yield Parameter("lm_head.bias", (rows,), "bias", 0, (rows,))
    if model.binary_head:
        yield from _dense("pooler.dense", width, width)
        yield from _dense("binary_head", 2, width)


def _dense(name: str, rows: int, width: int) -> Iterator[Parameter]:
    """Yield the parameters of a projection that is whole on every rank."""
    yield Parameter(f"{name}.weight", (rows, width), "matrix")
    yield Parameter(f"{name}.bias", (rows,), "bias")
