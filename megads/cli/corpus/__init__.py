"""``megads corpus``: from raw lines to a clean corpus."""

from __future__ import annotations

import click

from megads.cli import CommandGroup

COMMANDS = {
    "clean": ("megads.cli.corpus.clean", "Repair texts; drop short ones and other languages."),
    "merge": ("megads.cli.corpus.merge", "Join files of JSON lines into one, checked line by line."),
    "add-id": ("megads.cli.corpus.add_id", "Give each document an id: PREFIX-0000000001."),
    "find-duplicates": ("megads.cli.corpus.find_duplicates", "Find pairs of documents with similar texts."),
    "group-duplicates": ("megads.cli.corpus.group_duplicates", "Join similar pairs into groups."),
    "remove-duplicates": ("megads.cli.corpus.remove_duplicates", "Keep the first document of each group."),
    "decontaminate": ("megads.cli.corpus.decontaminate", "Cut texts of evaluation tasks out of the documents."),
    "wikipedia": ("megads.cli.corpus.wikipedia", "Texts of the pages of a Wikipedia dump."),
}


@click.group(cls=CommandGroup, late=COMMANDS)
def corpus() -> None:
    """Make a clean corpus of JSON lines, with a report of what was dropped and why."""
