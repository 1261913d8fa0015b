"""``megads corpus add-id``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import frame_options, in_and_out, run_and_print
from megads.cli.options.request import ManyWords

_USAGE = "megads corpus add-id INPUT... OUTPUT --id-prefix PREFIX"


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "--input-file", "inputs", multiple=True, help="Files or patterns; several.")
@click.option("--output", "--output-file", default="", help="The file to make.")
@click.option("--id-prefix", "prefix", required=True, help="What each id begins with.")
@click.option("--id-key", "key", default="adlr_id", show_default=True, help="Key of the id.")
@frame_options
def add_id(paths: tuple[str, ...], inputs: tuple[str, ...], output: str, prefix: str, key: str, **options: Any) -> None:
    """Give each document an id: PREFIX-0000000001, and so on, in the order of the input.

    \b
      megads corpus add-id clean.jsonl numbered.jsonl --id-prefix owt
    """
    from megads.data.corpus.lines import AddId

    names, output = in_and_out(paths, inputs, output, _USAGE)
    run_and_print(AddId(prefix, key), names, output, options)
