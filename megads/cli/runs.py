"""``megads runs``: the runs in a folder, one a line; and ``megads stop``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.errors import plain

if TYPE_CHECKING:
    from megads.monitor.run_state.runs import RunFacts

WHY = 60  # characters of a reason, where there is no terminal that says how wide
WORDS = {"run", "state", "model", "layout", "optimizer"}  # at the left of their column
# Columns that a narrow terminal drops, the first one first.
DROPPED = ("layout", "optimizer", "model", "causal", "mfu", "tokens", "age", "lr", "valid", "tok/s", "loss")
SORTS = ("name", "step", "loss", "valid", "tok/s", "tokens", "lr", "age", "state")
COLOURS = {"running": "green", "starting": "cyan", "hung": "yellow", "lost": "red", "failed": "red", "broken": "red"}
NARROWEST = 12  # characters of a name that a narrow terminal cuts


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="runs")
@click.option("--json", "as_json", is_flag=True, help="One object per run, with exact values.")
@click.option("--sort", type=click.Choice(SORTS), default="name", help="Column to sort by; losses and ages ascending.")
def runs(folder: Path, as_json: bool, sort: str) -> None:
    """List the runs in FOLDER (runs/): state, step, loss, speed (median of the last 50 steps).

    \b
    running      rank 0 wrote its heartbeat within the last minute
    starting     the launcher is at work, no rank yet
    hung         heartbeats, but no progress for longer than it may take
    lost         neither a heartbeat nor an outcome
    done, stopped, failed    as outcome.json says
    not started  submitted or set up, no rank has started
    broken       its files cannot be read

    A branch (megads branch) stands behind the run that it is of, with the iteration it began at.
    """
    from megads.errors import ConfigError
    from megads.monitor.log import may_colour
    from megads.monitor.run_state.branches import as_tree
    from megads.monitor.run_state.runs import facts_of, find_runs

    try:
        found = [facts_of(path) for path in find_runs(folder)]
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be listed: {error.strerror}; pass the folder that holds runs") from None
    found = ordered(found, sort)
    depths = dict.fromkeys((each.path for each in found), 0)
    if sort == "name":
        points = {each.path: (each.branch_of, each.branch_at or 0) for each in found if each.branch_of}
        depths = dict(as_tree([each.path for each in found], points))
        by_path = {each.path: each for each in found}
        found = [by_path[path] for path in depths]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=1))
    elif not found:
        click.echo(plain(f"{folder}: no runs in it"), err=True)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = table(found, width, depths)
        click.echo("\n".join(coloured(lines, found) if may_colour(sys.stdout) else lines))


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def stop(run: Path) -> None:
    """Ask the run in folder RUN, or all runs of an ensemble, to save and stop at the next step."""
    from megads.launch.ensemble.supervise import is_ensemble, stop_ensemble
    from megads.launch.run_folder import request_stop

    if is_ensemble(run):
        stop_ensemble(run)
        click.echo(f"{run}: all runs will save and stop after their current steps")
        return
    request_stop(run)
    click.echo(f"{run}: will save and stop after its current step")


def ordered(found: Sequence[RunFacts], sort: str) -> list[RunFacts]:
    """Return the runs by a column; those without a value come last."""
    keys: dict[str, Callable[[RunFacts], float | None]] = {
        "step": lambda run: -run.step,
        "loss": lambda run: run.loss,
        "valid": lambda run: run.valid_loss,
        "tok/s": lambda run: None if run.tokens_per_s is None else -run.tokens_per_s,
        "tokens": lambda run: None if run.tokens is None else -run.tokens,
        "lr": lambda run: run.lr,
        "age": lambda run: run.age_s,
    }
    if sort in ("name", "state"):
        return sorted(found, key=lambda run: (run.state if sort == "state" else "", run.path))
    values = [(keys[sort](run), run) for run in found]
    return [run for _, run in sorted(values, key=lambda each: (each[0] is None, each[0] or 0.0, each[1].path))]


def coloured(lines: Sequence[str], found: Sequence[RunFacts]) -> list[str]:
    """Return the lines of a table with its head in bold and states in colours."""
    rows = [
        line.replace(f"  {run.state} ", f"  {click.style(run.state, fg=COLOURS.get(run.state))} ", 1)
        for line, run in zip(lines[1:], found, strict=True)
    ]
    return [click.style(lines[0], bold=True), *rows]


def table(found: Sequence[RunFacts], width: int | None, depths: Mapping[str, int] | None = None) -> list[str]:
    """Return the lines of a table that fits ``width`` characters, without its least columns if need be.

    ``depths``: of the runs by path; a branch is indented behind the run it is of, with the iteration it began at.
    """
    from megads.text.units import count, duration

    def known(value: float | None, text: Callable[[float], str]) -> str:
        return "" if value is None else text(value)

    rows = [
        {
            "run": _name(each, (depths or {}).get(each.path, 0)),
            "state": each.state,
            "step": f"{each.step}/{each.total}" if each.total else str(each.step),
            "loss": known(each.loss, "{:.4f}".format),
            "valid": known(each.valid_loss, "{:.4f}".format),
            "lr": known(each.lr, "{:g}".format),
            "tokens": known(each.tokens, count),
            "tok/s": known(each.tokens_per_s, count),
            "mfu": known(each.mfu, "{:.1%}".format),
            "causal": known(each.mfu_causal, "{:.1%}".format),
            "age": known(each.age_s, duration),
            "model": each.model,
            "layout": each.layout,
            "optimizer": each.optimizer,
            "": each.why if width else each.why[:WHY],
        }
        for each in found
    ]
    rows = [{name: plain(text) for name, text in row.items()} for row in rows]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    return _fitted(rows, names, width)


def _name(run: RunFacts, depth: int) -> str:
    name = Path(run.path).name or run.path
    where = "" if run.branch_at is None else f" @{run.branch_at}"
    return "  " * depth + name + where


def _fitted(rows: Sequence[dict[str, str]], names: list[str], width: int | None) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    last = widths.pop("", 0)
    shown = [name for name in names if name]
    for name in DROPPED:
        if width is not None and sum(widths[each] + 2 for each in shown) - 2 > width and name in shown:
            shown.remove(name)
    used = sum(widths[each] + 2 for each in shown) - 2
    if width is not None and used > width:
        widths["run"] = max(NARROWEST, widths["run"] - (used - width))
    left = last if width is None else width - used - 2
    lines = []
    for row in [{name: name for name in names}, *rows]:
        cut = {name: _cut(row[name], widths[name]) for name in shown}
        cells = [text.ljust(widths[name]) if name in WORDS else text.rjust(widths[name]) for name, text in cut.items()]
        why = _cut(row[""], left) if last and left > NARROWEST else ""
        lines.append("  ".join([*cells, why]).rstrip())
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 2)]}.."
