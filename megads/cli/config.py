"""``megads config``: every setting, its value, and where the value came from."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import flag_table, settings_command, show_notes

if TYPE_CHECKING:
    from megads.config.sources.resolve import Resolved
    from megads.launch.request import TrainRequest


@settings_command
@click.argument("words", nargs=-1, metavar="[NAME]...")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@click.option("--diff", "runs", nargs=2, metavar="RUN RUN", help="Compare two run folders; now: the settings here.")
@click.option("--markdown", is_flag=True, help="Print docs/settings.md.")
@click.option("--engines", is_flag=True, help="Print what each engine does, the table of docs/engine.md.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--shell", is_flag=True, help="Print export lines that a shell can eval.")
@click.option("--presets", "list_presets", is_flag=True, help="List the presets and their other names.")
@click.option("--flags", "list_flags", is_flag=True, help="List the options that other toolkits have for settings.")
def config(
    request: Callable[[], TrainRequest],
    words: tuple[str, ...],
    changed: bool,
    runs: tuple[str, str] | None,
    markdown: bool,
    engines: bool,
    as_json: bool,
    shell: bool,
    list_presets: bool,
    list_flags: bool,
) -> None:
    """Show settings: value, unit, environment variable, and where the value came from.

    A NAME explains one setting; a word lists those that it occurs in.
    """
    if list_presets:
        _show_presets()
        return
    if list_flags:
        click.echo(flag_table())
        return
    if engines:
        from megads.config.engine_choice import table

        click.echo(table(), nl=False)
        return
    if markdown:
        from megads.config.reference import settings_page

        click.echo(settings_page(), nl=False)
        return
    asked = request()
    from megads.cluster.machine import machine_name
    from megads.launch.request import resolve_request

    resolved = resolve_request(asked, machine_name(asked.hostname, asked.env, asked.root))
    if runs:
        _show_difference(runs, asked, resolved)
        return
    show_notes(resolved.notes)
    if as_json:
        click.echo(json.dumps({row.pop("name"): row for row in _rows(resolved)}, indent=2))
    elif shell:
        for row in _rows(resolved):
            click.echo(f"export {row['env']}={shlex.quote(_text(row['value']))}")
    else:
        from megads.config.reference import explanation, find_settings

        names = find_settings(words)
        shown = _filled(asked, resolved)
        if len(names) == 1:
            (name,) = names
            row = _row(shown, name)
            click.echo("\n".join(explanation(name, row["value"], "at launch" if _is_open(row) else row["origin"])))
        else:
            _show_table(shown, names, changed=changed, with_help=bool(words))


def _filled(request: TrainRequest, resolved: Resolved) -> Resolved:
    """Return settings with the values that follow from the others on this host; as they are where that fails."""
    from megads.errors import MegadsError
    from megads.launch.plan_run import hosts_of_machine, plan_run

    try:
        return plan_run(request, hosts_of_machine(request, here=True), check_rules=False).resolved
    except MegadsError:
        return resolved


def _show_difference(runs: tuple[str, str], request: TrainRequest, resolved: Resolved) -> None:
    """Print the settings in which two runs differ, or a run and the settings here (``now``)."""
    from megads.config.reference import text_of
    from megads.config.run_folder import CONFIG, load_config
    from megads.config.tree import env_name, fields, value_of

    found = [_filled(request, resolved).run if run == "now" else load_config(Path(run) / CONFIG) for run in runs]
    differ = [name for name in fields() if len({text_of(value_of(run, name)) for run in found}) > 1]
    for name in differ:
        first, second = (text_of(value_of(run, name)) for run in found)
        click.echo(f"{env_name(name)}  {first} -> {second}")
    if not differ:
        click.echo(f"{runs[0]} and {runs[1]} have the same settings")


def _rows(resolved: Resolved) -> list[dict[str, Any]]:
    from megads.config.tree import fields

    return [_row(resolved, name) for name in fields()]


def _row(resolved: Resolved, name: str) -> dict[str, Any]:
    from megads.config.tree import extra, fields, value_of

    field = fields()[name]
    return {
        "name": name,
        "value": value_of(resolved.run, name),
        "origin": str(resolved.origins[name]),
        "env": extra(field, "env"),
        "unit": extra(field, "unit"),
        "help": field.description,
    }


NARROW = 120
"""Columns below which a row skips the dotted name."""


def _show_table(resolved: Resolved, names: tuple[str, ...], *, changed: bool, with_help: bool) -> None:
    """Print a row for each of ``names``; on a narrow terminal none is longer than that."""
    given = [row for row in _rows(resolved) if row["name"] in names]
    if changed:
        given = [row for row in given if not row["origin"].startswith(("default", "derived"))]
    columns = _columns()
    rows = [("setting", "value", "unit", "variable", "origin"), *map(_cells, given)]
    if columns < NARROW:
        rows = [(variable, value, unit, "", origin) for _, value, unit, variable, origin in rows]
    widths = [min(max(len(row[column]) for row in rows), 40) for column in range(5)]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(cell for cell in cells if cell or columns >= NARROW).rstrip()
        click.echo(line if len(line) <= columns else f"{line[: columns - 3]}...")
        if with_help and number:
            click.echo(f"    {given[number - 1]['help']}")
    if any(map(_is_open, given)):
        click.echo("(derived) values follow from the others and the number of ranks at launch: megads train --dry-run")


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    return row["name"], _shown(row), row["unit"], row["env"], "" if _is_open(row) else row["origin"]


def _columns() -> int:
    """Return the width of the terminal; what is written to a file has no limit."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 1000
    return shutil.get_terminal_size((80, 24)).columns


def _is_open(row: dict[str, Any]) -> bool:
    """Return whether a value is filled at launch."""
    from megads.config.derive import FILLED

    return row["name"] in FILLED and not row["value"]


def _shown(row: dict[str, Any]) -> str:
    if _is_open(row):
        return "(derived)"
    return _text(row["value"]) or '""'


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show_presets() -> None:
    from megads.config.sources.presets import presets

    for name, layer in presets().items():
        click.echo(f"{name:16} {', '.join(layer.aliases)}".rstrip())
        click.echo(f"{'':16} {layer.description}")
