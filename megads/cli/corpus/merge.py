"""``megads corpus merge``."""

from __future__ import annotations

import os
from typing import Any

import click

from megads.cli.corpus.frame import frame_options, in_and_out, run_and_print
from megads.cli.options.request import ManyWords
from megads.errors import DataError

_USAGE = "megads corpus merge INPUT... OUTPUT, where an input is a file, a pattern or a folder of .json and .jsonl"


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "--json_path", "--json-path", "inputs", multiple=True, help="Folders, files or patterns.")
@click.option("--output", "--output_file", "--output-file", default="", help="The file to make.")
@frame_options
def merge(paths: tuple[str, ...], inputs: tuple[str, ...], output: str, **options: Any) -> None:
    """Join files of JSON lines, plain or as gzip, xz, zstd or bzip2, into one plain file.

    \b
      megads corpus merge downloads/ merged.jsonl

    Of a folder the files *.json and *.jsonl are taken, also packed ones, sorted by name. Every line must be a JSON
    object, and stays as it is.
    """
    from megads.data.corpus.lines import Merge

    names, output = in_and_out(paths, inputs, output, _USAGE)
    run_and_print(Merge(), [file for name in names for file in files_of(name)], output, options)


def files_of(name: str, endings: tuple[str, ...] = (".json", ".jsonl")) -> list[str]:
    """Return the files of a folder that have one of the ``endings``, also packed; else ``name`` itself."""
    folder = os.path.expanduser(name)
    if not os.path.isdir(folder):
        return [name]
    packed = ("", ".gz", ".xz", ".zst", ".bz2")
    wanted = tuple(ending + more for ending in endings for more in packed)
    found = sorted(os.path.join(folder, each) for each in os.listdir(folder) if each.endswith(wanted))
    if not found:
        raise DataError(f"{name}: has no file that ends with {' or '.join(endings)}")
    return found
