"""``megads corpus stats``."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import Any

import click

from megads.cli.corpus.clean import tokenizer_of, tokenizer_options
from megads.cli.corpus.frame import frame_options, run
from megads.cli.options.request import ManyWords
from megads.errors import ConfigError


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "inputs", multiple=True, help="Files or patterns; several.")
@click.option("--output", default="", help="File for the counts as JSON; with it a killed call resumes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--json-key", "key", default="text", show_default=True, help="Key of the text.")
@click.option("--url-key", default="url", show_default=True, help="Key of the URL.")
@click.option("--languages/--no-languages", "with_languages", default=True, help="Find the language of each document.")
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True, help="Domains to name.")
@tokenizer_options
@frame_options
def stats(
    paths: tuple[str, ...],
    inputs: tuple[str, ...],
    output: str,
    as_json: bool,
    key: str,
    url_key: str,
    with_languages: bool,
    top: int,
    **options: Any,
) -> None:
    """Count documents, bytes, words, tokens, lengths, languages and domains.

    \b
      megads corpus stats clean.jsonl
      megads corpus stats clean.jsonl --tokenizer-model tokenizer.json --json
    """
    import json

    from megads.cluster.mpi import finish_mpi
    from megads.cluster.ranks import find_ranks
    from megads.data.corpus.stats import Stats, table
    from megads.storage.reading import read_json

    names = [*inputs, *paths]
    if not names:
        raise ConfigError("the input is missing; usage: megads corpus stats INPUT...")
    step = Stats(key, url_key, tokenizer_of(options), with_languages=with_languages, top=top)
    if not output and find_ranks(os.environ).world_size > 1:
        raise ConfigError("stats on several ranks needs --output FILE, where they meet")
    with ExitStack() as stack:
        path = output or os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "stats.json")
        summary = run(step, names, path, options, is_hidden=True)
        if summary is not None:
            found = read_json(os.path.expanduser(path))
            lines = [json.dumps(found, indent=2)] if as_json else table(found, summary.content["bad_lines"]["count"])
            click.echo("\n".join(lines))
    finish_mpi()
