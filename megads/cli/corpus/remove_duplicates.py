"""``megads corpus remove-duplicates``."""

from __future__ import annotations

from typing import Any

import click

from megads.cli.corpus.frame import dropped_option, frame_options, run_and_print
from megads.cli.options.request import ManyWords


@click.command(cls=ManyWords)
@click.argument("groups")
@click.argument("data")
@click.argument("output")
@click.option("--key", default="url", show_default=True, help="Key of a document's identifier.")
@dropped_option
@frame_options
def remove_duplicates(groups: str, data: str, output: str, key: str, **options: Any) -> None:
    """Remove the documents of DATA that are in a group of group-duplicates, but for the first of each group.

    \b
      megads corpus remove-duplicates groups.jsonl news.jsonl unique.jsonl
    """
    from megads.data.corpus.duplicates.remove import RemoveDuplicates

    run_and_print(RemoveDuplicates(groups, key), [data], output, options)
