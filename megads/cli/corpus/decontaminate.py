"""``megads corpus decontaminate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megads.cli.corpus.frame import dropped_option, frame_options, run
from megads.cli.options.request import ManyWords
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.data.corpus.contamination.decontaminate import Task

_SIZE = click.IntRange(1, 1000)
_CHARACTERS = click.IntRange(0, 2**31)


@click.command(cls=ManyWords)
@click.option(
    "--tasks", multiple=True, required=True, help="Names of the tasks, in the numbers of the output; several."
)
@click.option(
    "--task-path", "paths", multiple=True, help="NAME=FILE of each task: JSON lines, or SQuAD's JSON; several."
)
@click.option(
    "--task-key", "keys", multiple=True, help="NAME=KEY of the texts of a task that Megatron-LM does not know."
)
@click.option("--lambada-path", default="", help="Megatron-LM's name of --task-path lambada=FILE.")
@click.option("--dedup-dataset", "data", multiple=True, required=True, help="The corpus and the key of its texts.")
@click.option("--output", default="", help="The file to make; without it the dictionary is saved only.")
@click.option("--max-ngram-size", "most", type=_SIZE, default=13, show_default=True, help="Words of an n-gram.")
@click.option("--min-ngram-size", "least", type=_SIZE, default=8, show_default=True, help="Words of a shorter text.")
@click.option(
    "--filter-text-char-len", "piece", type=_CHARACTERS, default=200, show_default=True, help="Longest dropped piece."
)
@click.option(
    "--key-threshold",
    "threshold",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="An n-gram in as many documents is not cut out.",
)
@click.option("--save-dictionary", "saved", default="", help="File for the n-grams that are cut out.")
@click.option("--load-dictionary", "loaded", default="", help="Such a file, or Megatron-LM's; tasks are not read.")
@click.option(
    "--splits-count", "splits", type=_CHARACTERS, default=10, show_default=True, help="Most pieces of a document."
)
@click.option(
    "--remove-char-each-side", "side", type=_CHARACTERS, default=200, show_default=True, help="Characters cut out."
)
@dropped_option
@frame_options
def decontaminate(
    tasks: tuple[str, ...],
    paths: tuple[str, ...],
    keys: tuple[str, ...],
    lambada_path: str,
    data: tuple[str, ...],
    output: str,
    most: int,
    least: int,
    piece: int,
    threshold: int,
    saved: str,
    loaded: str,
    splits: int,
    side: int,
    **options: Any,
) -> None:
    """Cut texts of tasks out of a corpus: n-grams of 13 words, with 200 characters and the sentence on each side.

    \b
      megads corpus decontaminate --tasks lambada --lambada-path lambada.jsonl \\
          --dedup-dataset corpus.jsonl text --output clean.jsonl
    """
    from megads.cluster.machine import count_cores
    from megads.cluster.mpi import finish_mpi
    from megads.data.corpus.contamination.cut import Limits
    from megads.data.corpus.contamination.decontaminate import Decontaminate, Rules

    if len(data) != 2 or not data[1]:
        raise ConfigError(f"--dedup-dataset {' '.join(data)}: pass a file and the key of its texts: FILE KEY")
    if not output and not saved:
        raise ConfigError("--output is missing; pass --output FILE, or --save-dictionary FILE")
    files = _pairs("--task-path", paths, tasks) | ({"lambada": lambada_path} if lambada_path else {})
    step = Decontaminate(
        _tasks(tasks, files, _pairs("--task-key", keys, tasks), is_read=not loaded),
        data[1],
        Rules(most, least, threshold, Limits(side, piece, splits)),
        loaded=loaded,
        saved=saved,
        has_output=bool(output),
        workers=options["workers"] or count_cores(),
    )
    if not output and options["dropped"]:
        raise ConfigError(f"--dropped {options['dropped']}: nothing is dropped without --output")
    summary = run(step, [data[0]], output or saved, options)
    if summary is not None:
        counts = summary.content["counts"]
        line = summary.line if output else f"{saved}  # {counts['ngrams']:,} n-grams"
        click.echo(line)
    finish_mpi()


def _pairs(option: str, words: tuple[str, ...], tasks: tuple[str, ...]) -> dict[str, str]:
    """Return what ``NAME=VALUE`` says of each task."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigError(f"{option} {word}: expected NAME=VALUE, where NAME is one of --tasks {' '.join(tasks)}")
        if name not in tasks:
            raise ConfigError(f"{option} {word}: {name!r} is not one of --tasks {' '.join(tasks)}")
        found[name] = value
    return found


def _tasks(names: tuple[str, ...], paths: dict[str, str], keys: dict[str, str], *, is_read: bool) -> list[Task]:
    from megads.data.corpus.contamination.decontaminate import Task

    for name in names:
        if not name or not name.isprintable():
            raise ConfigError(f"--tasks {name!r}: is not a name")
        if is_read and name not in paths:
            raise ConfigError(f"--tasks {name}: has no file; pass --task-path {name}=FILE (nothing is downloaded)")
    return [Task(name, paths.get(name, ""), keys.get(name, "")) for name in names]
