"""``megads config``: every setting, its value, and where the value came from."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.flags import EPILOG, FlagCommand, flag_table
from megads.cli.options.notes import show_notes

if TYPE_CHECKING:
    from megads.config.sources.resolve import Resolved

SET_HELP = "Override one setting, section.key=value; may be repeated."


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return ``--set section.key=value`` options as a mapping.

    Raises:
        ConfigError: an option without ``=``, or one key with two values.
    """
    from megads.errors import ConfigError

    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair}: must have the form section.key=value, like --set train.lr=1e-4")
        if result.get(name, value) != value:
            raise ConfigError(f"--set {name}={result[name]} and --set {name}={value} differ; drop one of them")
        result[name] = value
    return result


def checkout() -> Path:
    """Return the checkout: ``MEGADS_ROOT``, else the folder that holds this package."""
    return Path(os.environ.get("MEGADS_ROOT") or Path(__file__).parents[2])


def resolve_here(preset: str | None, pairs: tuple[str, ...], flags: tuple[tuple[str, str], ...] = ()) -> Resolved:
    """Resolve the settings of this host, this environment and these options.

    Raises:
        ConfigError: one line that names the value, where it came from, and what would work.
        CheckpointError: ``USE_CHECKPOINT_ARGS`` is set and there is no checkpoint.
    """
    from megads.cluster.machine import machine_name
    from megads.config.sources.resolve import resolve

    root, overrides = checkout(), parse_pairs(pairs)
    machine = overrides.get("machine") or machine_name(socket.gethostname(), os.environ, root)
    first = resolve(preset, env=os.environ, overrides=overrides, flags=flags, machine=machine, root=root)
    if not first.run.checkpoint.use_args:
        return first
    from megads.launch.preflight.checkpoint_start import checkpoint_layer

    layer = checkpoint_layer(first.run)
    return resolve(
        preset, env=os.environ, overrides=overrides, flags=flags, machine=machine, root=root, checkpoint=layer
    )


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", metavar="NAME", help="Model preset, such as 7B; --presets lists them.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@click.argument("words", nargs=-1, metavar="[NAME]...")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@click.option("--diff", "runs", nargs=2, metavar="RUN RUN", help="Compare two run folders; now: the settings here.")
@click.option("--markdown", is_flag=True, help="Print docs/settings.md.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--shell", is_flag=True, help="Print export lines that a shell can eval.")
@click.option("--presets", "list_presets", is_flag=True, help="List the presets and their other names.")
@click.option("--flags", "list_flags", is_flag=True, help="List the options that other toolkits have for settings.")
def config(
    preset: str | None,
    pairs: tuple[str, ...],
    words: tuple[str, ...],
    changed: bool,
    runs: tuple[str, str] | None,
    markdown: bool,
    as_json: bool,
    shell: bool,
    list_presets: bool,
    list_flags: bool,
    flags: tuple[tuple[str, str], ...],
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
    if markdown:
        from megads.config.reference import settings_page

        click.echo(settings_page(), nl=False)
        return
    resolved = resolve_here(preset, pairs, flags)
    if runs:
        _show_difference(runs, resolved)
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
        shown = _filled(resolved)
        if len(names) == 1:
            (name,) = names
            row = _row(shown, name)
            click.echo("\n".join(explanation(name, row["value"], "at launch" if _is_open(row) else row["origin"])))
        else:
            _show_table(shown, names, changed=changed, with_help=bool(words))


def _filled(resolved: Resolved) -> Resolved:
    """Return settings with the values that follow from the others on this host; as they are where that fails."""
    from megads.cluster.machine import count_accelerators
    from megads.config.derive import derive
    from megads.config.sources.presets import read_machine
    from megads.data.tokenizers.of_run import vocab_size_of
    from megads.errors import MegadsError
    from megads.launch.schedulers.allocation import host_ranks
    from megads.launch.schedulers.allocation import ranks_per_host as ranks_here

    run = resolved.run
    try:
        facts = read_machine(run.machine, checkout()).facts
        hosts = run.launch.num_hosts or 1
        ranks = ranks_here(run.launch, facts, count_accelerators(os.environ), here=True) or host_ranks(
            run, facts, hosts
        )
        return derive(resolved, num_hosts=hosts, ranks_per_host=ranks, vocab_size=vocab_size_of(run))
    except MegadsError:
        return resolved


def _show_difference(runs: tuple[str, str], resolved: Resolved) -> None:
    """Print the settings in which two runs differ, or a run and the settings here (``now``)."""
    from megads.config.reference import text_of
    from megads.config.run_folder import CONFIG, load_config
    from megads.config.tree import env_name, fields, value_of

    found = [_filled(resolved).run if run == "now" else load_config(Path(run) / CONFIG) for run in runs]
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
