"""What ``megads generate`` does with a BERT: fill the masks of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.inference.generate import Prompt
    from megads.inference.session import Session

_OF_TEXTS = (
    *("num_samples", "max_tokens", "temperature", "greedy", "top_p", "min_p", "repetition_penalty", "stop", "seed"),
    "logprobs",
)
"""Options that a model has no use for which does not generate texts."""


def check_options() -> None:
    """Refuse options of the command that fill no masks.

    Raises:
        ConfigError: one is given.
    """
    context = click.get_current_context()
    for each in context.command.params:
        if each.name in _OF_TEXTS and context.get_parameter_source(each.name) is not ParameterSource.DEFAULT:
            raise ConfigError(f"{each.opts[0]}: the model fills masks and generates no text; use --top-k, or drop it")


def answers(session: Session, top: int) -> Callable[[str, int], Iterator[str]]:
    """Return what gives the lines to print for a prompt: the filled text, and the words of each mask."""
    from megads.inference.fill_mask import TOP, fill_masks
    from megads.inference.generate import Prompt

    def answer(text: str, place: int) -> Iterator[str]:
        for record in fill_masks(session, [Prompt(text)], top or TOP):
            yield printed(record)

    return answer


def records(
    session: Session, prompts: Sequence[Prompt], options: dict[str, Any], progress: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """Return the records of :func:`megads.inference.fill_mask.fill_masks`."""
    from megads.inference.fill_mask import TOP, fill_masks

    return fill_masks(session, prompts, options["top_k"] or TOP, options["batch"], progress)


def printed(record: dict[str, Any]) -> str:
    """Return a record as lines: the filled text, and for each mask the probabilities of its words."""
    lines = [record["all_text"]]
    for number, candidates in enumerate(record["masks"], start=1):
        lines += [f"mask {number}:"] * (len(record["masks"]) > 1)
        lines += [f"  {each['probability']:.4f}  {each['text']}" for each in candidates]
    return "\n".join(lines)
