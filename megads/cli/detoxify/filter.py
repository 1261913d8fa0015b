"""``megads detoxify filter``: step 3."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from megads.cli.detoxify.annotate import Number, input_of
from megads.cli.harness import write_result
from megads.cli.options.request import absolute
from megads.errors import ConfigError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.detoxify.filter import Filtered, Summary


@click.command("filter")
@click.argument("source", required=False, metavar="FILE")
@click.option("--data-path", "--input", "data_path", metavar="FILE", help="The same as FILE, as in Megatron-LM.")
@click.option(
    "--output", "--out-path", "target", metavar="FILE", help="[default: FILE-filtered.jsonl, without -annotated.jsonl]"
)
@click.option(
    "--keep",
    type=Number(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="Share of the lines that is kept.",
)
@click.option("--attribute", default="toxicity", show_default=True, help="The score that decides.")
@click.option("--seed", "--random-seed", type=click.IntRange(min=0), default=1234, show_default=True, help="Of order.")
@click.option("--overwrite", is_flag=True, help="Replace a file that another command made.")
@click.option("--json", "json_file", metavar="FILE", help="Write the numbers there, too.")
@click.option("--prompt-path", "--workers", hidden=True, multiple=True, help="Accepted; not needed here.")
def filter_texts(**options: Any) -> None:
    """Keep the least toxic half of the texts of FILE, which `megads detoxify annotate` made."""
    from megads.detoxify.filter import filter_file

    path = input_of(options)
    target = absolute(options["target"] or f"{str(path).removesuffix('-annotated.jsonl')}-filtered.jsonl")
    if target == path:
        raise ConfigError(f"--output {target}: is the input; pass another file")
    found = filter_file(
        path,
        target,
        keep=options["keep"],
        seed=options["seed"],
        attribute=options["attribute"],
        overwrite=options["overwrite"],
    )
    click.echo(_table(found))
    click.echo(f"{target}: {found.kept.count} of {plural(found.lines, 'line')}, shuffled with seed {options['seed']}")
    if options["json_file"]:
        write_result(options["json_file"], json.dumps(asdict(found), indent=1) + "\n")


def _table(found: Filtered) -> str:
    rows = [f"{'':10}{'texts':>8}  {'mean':>7}   {'std':>6}   lowest to highest"]
    rows += [
        _row("all", found.all),
        _row("toxic", found.toxic),
        _row("non-toxic", found.nontoxic),
        _row("kept", found.kept),
    ]
    rows += [f"{'no score':10}{found.unscored:8}  dropped"] if found.unscored else []
    return "\n".join(rows)


def _row(name: str, found: Summary) -> str:
    if not found.count:
        return f"{name:10}{0:8}"
    return f"{name:10}{found.count:8}  {found.mean:7.4f} +- {found.std:6.4f}   {found.least:.4f} to {found.most:.4f}"
