"""``megads corpus``: from raw lines to a clean corpus."""

from __future__ import annotations

import click

from megads.cli import CommandGroup

COMMANDS = {
    "urls": ("megads.cli.corpus.urls", "Join lists of URLs, without blocked ones and duplicates."),
    "wikipedia": ("megads.cli.corpus.wikipedia", "Texts of the pages of a Wikipedia dump."),
    "merge": ("megads.cli.corpus.merge", "Join files of JSON lines into one, checked line by line."),
    "clean": ("megads.cli.corpus.clean", "Repair texts; drop short ones and other languages."),
    "find-duplicates": ("megads.cli.corpus.find_duplicates", "Find pairs of documents with similar texts."),
    "group-duplicates": ("megads.cli.corpus.group_duplicates", "Join similar pairs into groups."),
    "remove-duplicates": ("megads.cli.corpus.remove_duplicates", "Keep the first document of each group."),
    "decontaminate": ("megads.cli.corpus.decontaminate", "Cut texts of evaluation tasks out of the documents."),
    "shuffle": ("megads.cli.corpus.shuffle", "Put documents into a random order, in bounded memory."),
    "add-id": ("megads.cli.corpus.add_id", "Give each document an id: PREFIX-0000000001."),
    "stats": ("megads.cli.corpus.stats", "Count documents, bytes, words, tokens, languages, domains."),
}


@click.group(cls=CommandGroup, late=COMMANDS)
def corpus() -> None:
    """Make a clean corpus of JSON lines, with a report of what was dropped and why."""
