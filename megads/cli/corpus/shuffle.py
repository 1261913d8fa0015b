"""``megads corpus shuffle``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import frame_options, in_and_out, run_and_print
from megads.cli.options.request import ManyWords

_USAGE = "megads corpus shuffle INPUT... OUTPUT"


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "inputs", multiple=True, help="Files or patterns; several.")
@click.option("--output", default="", help="The file to make.")
@click.option("--seed", type=click.IntRange(min=0), default=1234, show_default=True, help="Of the order.")
@click.option("--memory-mb", type=click.IntRange(min=1), default=256, show_default=True, help="MiB sorted at once.")
@frame_options
def shuffle(
    paths: tuple[str, ...], inputs: tuple[str, ...], output: str, seed: int, memory_mb: int, **options: Any
) -> None:
    """Put documents into a random order, which the seed and the input decide.

    \b
      megads corpus shuffle clean.jsonl shuffled.jsonl --seed 1

    The order is the same for any number of workers and ranks, and for any --memory-mb. The disk of the output needs
    room for the corpus twice.
    """
    from megads.data.corpus.shuffle import Shuffle
    from megads.data.preprocess.input.files import find_inputs

    names, output = in_and_out(paths, inputs, output, _USAGE)
    run_and_print(Shuffle(seed, find_inputs(names), memory_mb * 2**20), names, output, options)
