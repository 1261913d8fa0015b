"""``megads corpus group-duplicates``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import frame_options, run
from megads.cli.options.request import ManyWords
from megads.errors import ConfigError
from megads.text.plural import plural


@click.command(cls=ManyWords)
@click.argument("pairs")
@click.argument("output")
@click.argument("threshold", type=float, default=0.7)
@frame_options
def group_duplicates(pairs: str, output: str, threshold: float, **options: Any) -> None:
    """Join the pairs of find-duplicates with a similarity of at least THRESHOLD (0.7) into groups.

    \b
      megads corpus group-duplicates pairs.jsonl groups.jsonl 0.8

    Each line of the output is {number: [id, ...]}; the first of a group is the one that stays.
    """
    from megads.cluster.mpi import finish_mpi
    from megads.data.corpus.duplicates.remove import GroupDuplicates

    if not 0 <= threshold <= 1:
        raise ConfigError(f"THRESHOLD {threshold}: a similarity is between 0 and 1")
    summary = run(GroupDuplicates(threshold), [pairs], output, options)
    if summary is not None:
        counts = summary.content["counts"]
        click.echo(
            f"{output}  # {plural(counts['groups'], 'group', ',')} of {plural(counts['members'], 'document', ',')}, "
            f"of which {counts['duplicates']:,} can be removed"
        )
    finish_mpi()
