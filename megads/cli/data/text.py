"""``megads data from-text``: plain text files to JSON lines."""

from __future__ import annotations

import os
from pathlib import Path

import click

from megads.cli.options.request import ManyWords
from megads.text.plural import plural
from megads.text.units import size as size_text


@click.command(cls=ManyWords)
@click.option("--input", "inputs", multiple=True, required=True, help="Text files or patterns; several.")
@click.option("--output", required=True, help="The file of JSON lines to make.")
@click.option("--encoding", default="utf-8", help="Of the text files, e.g. latin-1.", show_default=True)
@click.option("--overwrite", "--force", is_flag=True, help="Replace an existing file.")
def from_text(inputs: tuple[str, ...], output: str, encoding: str, overwrite: bool) -> None:
    """Make JSON lines from plain text files: each file is a document.

    \b
      megads data from-text --input 'notes/**/*.txt' --output corpus.jsonl

    A line has the text of a file as "text" and its path as "source". Files without text are skipped.
    """
    from megads.data.preprocess.plain_text import write_documents

    made = write_documents(inputs, Path(os.path.expanduser(output)), encoding=encoding, overwrite=overwrite)
    if made.empty:
        click.echo(f"megads: {plural(len(made.empty), 'file')} without text skipped, first {made.empty[0]}", err=True)
    click.echo(f"{output}: {plural(made.documents, 'document')}, {size_text(made.size)}")
