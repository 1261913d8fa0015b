"""``megads corpus urls``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import dropped_option, frame_options, in_and_out, run_and_print
from megads.cli.corpus.merge import files_of
from megads.cli.options.request import ManyWords

_USAGE = "megads corpus urls INPUT... OUTPUT, where an input is a folder of .txt, a file or a pattern"


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "inputs", multiple=True, help="Folders of .txt files, files or patterns; several.")
@click.option("--output", default="", help="The file to make: one URL a line.")
@dropped_option
@frame_options
def urls(paths: tuple[str, ...], inputs: tuple[str, ...], output: str, **options: Any) -> None:
    """Join lists of URLs, without those that are not worth a download.

    \b
      megads corpus urls lists/ urls.txt --dropped dropped-urls.jsonl

    Dropped are, in this order: domains of media, shops and logins; endings of files that are not pages; URLs of up to
    8 characters; malformed ones; duplicates.
    """
    from megads.data.corpus.urls.step import Urls

    names, output = in_and_out(paths, inputs, output, _USAGE)
    run_and_print(Urls(), [file for name in names for file in files_of(name, (".txt",))], output, options)
