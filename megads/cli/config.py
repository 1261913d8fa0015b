"""``megads config``: every setting, its value, and where the value came from."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.flags import EPILOG, FlagCommand, flag_table

if TYPE_CHECKING:
    from megads.config.resolve import Resolved

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
            raise ConfigError(f"--set {name}={result[name]} and --set {name}={value} differ; give one of them")
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
    from megads.config.resolve import resolve

    root, overrides = checkout(), parse_pairs(pairs)
    machine = overrides.get("machine") or machine_name(socket.gethostname(), os.environ, root)
    first = resolve(preset, env=os.environ, overrides=overrides, flags=flags, machine=machine, root=root)
    if not first.run.checkpoint.use_args:
        return first
    from megads.launch.origin import checkpoint_layer

    layer = checkpoint_layer(first.run)
    return resolve(
        preset, env=os.environ, overrides=overrides, flags=flags, machine=machine, root=root, checkpoint=layer
    )


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", metavar="NAME", help="Model preset, such as 7B; --presets lists them.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help=SET_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--shell", is_flag=True, help="Print export lines that a shell can eval.")
@click.option("--presets", "list_presets", is_flag=True, help="List the presets and their other names.")
@click.option("--flags", "list_flags", is_flag=True, help="List the options that other toolkits have for settings.")
def config(
    preset: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
    shell: bool,
    list_presets: bool,
    list_flags: bool,
    flags: tuple[tuple[str, str], ...],
) -> None:
    """Show every setting: value, unit, environment variable, and where the value came from."""
    if list_presets:
        _show_presets()
        return
    if list_flags:
        click.echo(flag_table())
        return
    resolved = resolve_here(preset, pairs, flags)
    for note in resolved.notes:
        click.echo(f"megads: {note}", err=True)
    if as_json:
        click.echo(json.dumps({row.pop("name"): row for row in _rows(resolved)}, indent=2))
    elif shell:
        for row in _rows(resolved):
            click.echo(f"export {row['env']}={shlex.quote(_text(row['value']))}")
    else:
        _show_table(resolved)


def _rows(resolved: Resolved) -> list[dict[str, Any]]:
    from megads.config.tree import extra, fields, value_of

    return [
        {
            "name": name,
            "value": value_of(resolved.run, name),
            "origin": str(resolved.origins[name]),
            "env": extra(field, "env"),
            "unit": extra(field, "unit"),
            "help": field.description,
        }
        for name, field in fields().items()
    ]


def _show_table(resolved: Resolved) -> None:
    rows = [
        (row["name"], _shown(row), row["unit"], row["env"], "" if _is_open(row) else row["origin"])
        for row in _rows(resolved)
    ]
    rows.insert(0, ("setting", "value", "unit", "variable", "origin"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        name, value, unit, env, origin = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(f"{name}  {value}  {unit}  {env}  {origin}".rstrip())
    click.echo("(derived) values follow from the others and the number of ranks at launch: megads train --dry-run")


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
    from megads.config.layers import presets

    for name, layer in presets().items():
        click.echo(f"{name:16} {', '.join(layer.aliases)}".rstrip())
        click.echo(f"{'':16} {layer.description}")
