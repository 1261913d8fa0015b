"""``megads corpus find-duplicates``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import frame_options, run
from megads.cli.options.request import ManyWords
from megads.errors import ConfigError


@click.command(cls=ManyWords)
@click.option("--inputs", multiple=True, help="Pairs of a file and the key of its identifier: FILE KEY FILE KEY ...")
@click.option("--load-fingerprints", "loaded", multiple=True, help="Files that --save-fingerprints wrote; several.")
@click.option("--save-fingerprints", "saved", default="", help="File for the fingerprints of all inputs.")
@click.option("--output", default="", help="File for the pairs; without it fingerprints are saved only.")
@click.option(
    "--jaccard",
    "kind",
    type=click.Choice(("union", "min", "max")),
    default="union",
    show_default=True,
    help="What the number of common shingles is divided by.",
)
@click.option(
    "--heuristic-iter",
    "rounds",
    type=int,
    default=1,
    show_default=True,
    help="Documents of a bucket that are compared with all others of it; -1: all.",
)
@click.option("--num-bands", type=click.IntRange(1, 4096), default=20, show_default=True, help="Bands of a signature.")
@click.option(
    "--num-seeds", type=click.IntRange(1, 4096), default=100, show_default=True, help="Numbers of a signature."
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1234, show_default=True, help="Seed of all draws.")
@click.option("--jaccard-parallel", is_flag=True, hidden=True)  # pairs are always compared by all workers
@frame_options
def find_duplicates(
    inputs: tuple[str, ...],
    loaded: tuple[str, ...],
    saved: str,
    output: str,
    kind: Any,
    rounds: int,
    num_bands: int,
    num_seeds: int,
    seed: int,
    jaccard_parallel: bool,
    **options: Any,
) -> None:
    """Find pairs of documents whose texts are similar: more than half of their shingles of five characters in common.

    \b
      megads corpus find-duplicates --inputs news.jsonl url --output pairs.jsonl

    Each line of the output is {id: [{other id: similarity}, ...]}, in the order of the input.
    """
    from megads.cluster.machine import count_cores
    from megads.cluster.mpi import finish_mpi
    from megads.data.corpus.duplicates.find import FindDuplicates, Search
    from megads.data.preprocess.input.files import find_inputs

    if len(inputs) % 2:
        raise ConfigError(f"--inputs {' '.join(inputs)}: pass a key behind each file: FILE KEY FILE KEY")
    if not inputs and not loaded:
        raise ConfigError("--inputs is missing; pass --inputs FILE KEY, or --load-fingerprints FILE")
    if not output and not saved:
        raise ConfigError("--output is missing; pass --output FILE for the pairs, or --save-fingerprints FILE")
    files = [(file, key) for file, key in zip(inputs[::2], inputs[1::2], strict=True)]
    if empty := next((file for file, key in files if not key), ""):
        raise ConfigError(f"--inputs {empty}: its key is empty; pass the key of the identifier")
    named = [(source.path, "") for source in find_inputs(loaded)] if loaded else []
    named += [(source.path, key) for file, key in files for source in find_inputs([file])]
    step = FindDuplicates(
        [key for _, key in named],
        Search(num_bands, num_seeds, seed, kind, rounds),
        saved=saved,
        has_pairs=bool(output),
        workers=options["workers"] or count_cores(),
    )
    summary = run(step, [path for path, _ in named], output or saved, options)
    if summary is not None:
        click.echo(step.line(summary.content))
    finish_mpi()
