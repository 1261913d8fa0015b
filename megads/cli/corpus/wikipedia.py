"""``megads corpus wikipedia``."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from megads.cli.corpus.frame import frame_options
from megads.errors import ConfigError


@click.command()
@click.argument("dump")
@click.argument("output")
@click.option(
    "--min-length", type=click.IntRange(min=0), default=0, show_default=True, help="Characters of a page, at least."
)
@frame_options
def wikipedia(dump: str, output: str, min_length: int, max_bad_lines: int, **options: Any) -> None:
    """Write the text of each article of a MediaWiki dump as a JSON line: id, url, title, text.

    \b
      megads corpus wikipedia enwiki-latest-pages-articles.xml.bz2 wikipedia.jsonl

    Templates, references, tables and files are removed; headings are lines. Redirects and pages of other namespaces
    are skipped. Rerun a killed call to resume it.
    """
    from megads.cluster.machine import count_cores
    from megads.cluster.ranks import find_ranks
    from megads.data.corpus.frame.job import check_output
    from megads.data.corpus.wikipedia.extract import Extraction, extract
    from megads.data.preprocess.input.files import find_inputs
    from megads.data.preprocess.plan import How, check_processes

    ranks = find_ranks(os.environ).world_size
    if ranks > 1:
        raise ConfigError(f"megads corpus wikipedia reads a dump in one process, not in {ranks} ranks; use --workers")
    if max_bad_lines:
        raise ConfigError(f"--max-bad-lines {max_bad_lines}: a dump has pages, not lines; drop the option")
    sources = find_inputs([dump])
    if len(sources) > 1:
        raise ConfigError(f"{dump}: fits {len(sources)} files; pass one dump at a time")
    output = os.path.expanduser(output)
    check_output("OUTPUT", output)
    if os.path.realpath(sources[0].path) in map(os.path.realpath, (output, f"{output}.report.json")):
        raise ConfigError(f"OUTPUT {output}: is the dump, which it or its report would overwrite; use another name")
    how = How(**{**options, "workers": options["workers"] or count_cores()})
    check_processes(how)
    report: Any = extract(Extraction(sources[0], output, min_length, how), sys.stderr)
    pages, reasons = report["pages"], report["reasons"]
    line = f"{output}  # kept {pages['kept']:,} of {pages['read']:,} pages"
    if reasons:
        line += "; dropped " + ", ".join(f"{name} {count:,}" for name, count in reasons.items())
    click.echo(line)
