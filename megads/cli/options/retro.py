"""Options of a model that looks at neighbours: how many, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

_OF_MODEL = {"retro_num_neighbors": click.IntRange(1, 1000), "retro_attention_gate": click.FloatRange(0, 1)}
_OPTIONS = (
    click.option(
        "--retro-num-neighbors",
        type=_OF_MODEL["retro_num_neighbors"],
        metavar="K",
        help="retro: neighbours of a chunk that are looked at; default: as in training.",
    ),
    click.option(
        "--retro-attention-gate",
        type=_OF_MODEL["retro_attention_gate"],
        metavar="G",
        help="retro: what they give is multiplied by this; 0: they are not looked at; default: as in training.",
    ),
)


def retro_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command


def model_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model that the options change."""
    return {name: options[name] for name in _OF_MODEL if options[name] is not None}
