"""What a family is: defaults of settings, and the classes of transformers that compute its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from megads.families.config_json import ConfigJson

Names = tuple[tuple[str, str, int | None], ...]
"""Of a layer: name in transformers, name here, and which of the parts that are fused here (None: all)."""


@dataclass(frozen=True)
class HuggingFace:
    """A class of transformers: what it computes, how it calls it, and its ``config.json``."""

    name: str  # of the class
    model_type: str  # of its ``config.json``
    # whether it is the one for a derived model, whose other settings must then be as it ``needs``
    suits: Callable[[Any], bool]
    needs: Mapping[str, tuple[Any, ...]]  # setting -> the values that it has
    read: Callable[[ConfigJson], dict[str, Any]]  # settings of the model that a ``config.json`` describes
    # what ``config.json`` says of a derived model, but for what all classes have in common; the second argument is
    # what was imported with it (max_position_embeddings, sliding_window)
    write: Callable[[Any, Mapping[str, Any]], dict[str, Any]]
    # our module outside the layers -> its name; ``{last}`` stands for the number of the encoder's last layer
    outside: Mapping[str, str]
    layers: str  # what the names of a layer begin with
    inside: Names  # of a layer
    # what else of a derived model it does not have, in words; empty: nothing
    misfit: Callable[[Any], str] = lambda model: ""
    # how many tokens its attention sees, by a ``config.json``; None: all
    window: Callable[[ConfigJson], int | None] = lambda config: None
    # what it computes a little otherwise, in words; empty: nothing
    differs: Callable[[Any], str] = lambda model: ""
    is_transposed: bool = False  # whether it keeps the matrices of a layer as [in, out]
    prefix: str = ""  # that names may lack
    decoder: str = ""  # of an encoder with a decoder: what the names of the decoder's layers begin with, from 0 on
    inside_decoder: Names = ()  # of a layer of the decoder

    is_encoder: bool = False  # whether its tokens attend in both directions, in a single stack of layers

    def suits_all(self, model: Any) -> bool:
        """Return whether it :attr:`suits` a derived model, has as many stacks of layers, and is an encoder if it is."""
        is_alike = bool(self.decoder) == bool(model.decoder_layers) and self.is_encoder == (model.family == "bert")
        return is_alike and self.suits(model)


@dataclass(frozen=True)
class Family:
    """A bundle of defaults that decides the description of a model, see ``megads.families.decoder``."""

    summary: str  # what it is made of, in a few words
    classes: tuple[HuggingFace, ...]  # of transformers, the usual one first
    # dotted setting -> its default in this family, below presets in precedence
    defaults: Mapping[str, Any] = field(default_factory=dict)
    init_std: float = 0.0  # of initial weights; 0: sqrt(2 / (5 HIDDEN))
    # what it is trained on: every token from those before it, also with neighbours, or the samples of
    # ``megads.data.samples.masked``
    samples: Literal["causal", "bert", "t5", "retro"] = "causal"

    @property
    def reads_sentences(self) -> bool:
        """Return whether its samples are made of sentences."""
        return self.samples in ("bert", "t5")
