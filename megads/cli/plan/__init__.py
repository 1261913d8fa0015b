"""``megads plan``: the best layouts of a model on so many hosts of a machine, without either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import absolute, settings_command, show_notes
from megads.cli.plan.trace import trace_options, trace_report
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest


@settings_command
@click.option("--machine", default="", metavar="NAME", help="A machine of envs/; default: MACHINE, or this one.")
@click.option("--device", default="", metavar="NAME", help="A device, on its usual hosts or in place of the machine's.")
@click.option("--nodes", type=click.IntRange(min=1), help="Hosts; without them a table over numbers of hosts.")
@click.option("--ranks", type=click.IntRange(min=1), help="Total ranks, instead of --nodes.")
@click.option("--max-memory", type=float, default=0.9, show_default=True, help="Share of a device's memory to use.")
@click.option("--tokens", default="", metavar="N", help="Token budget, e.g. 1T or 300B; default: TRAIN_TOKENS.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Layouts to show.")
@click.option("--apply", "is_apply", is_flag=True, help="Print the command of the best layout, to paste.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything there; - prints it.")
@trace_options
def plan(
    request: Callable[[], TrainRequest],
    machine: str,
    device: str,
    nodes: int | None,
    ranks: int | None,
    max_memory: float,
    tokens: str,
    top: int,
    is_apply: bool,
    json_path: str | None,
    **traced: Any,
) -> None:
    """Plan a run without the machine: the best layouts, why the others lose, time, energy, cost. See docs/planner.md.

    Settings of the environment and the command line are held; every other setting of the layout is searched.
    """
    if is_apply and json_path == "-":
        raise ConfigError("--apply and --json - both print to stdout; pass --json FILE")
    if json_path and json_path != "-" and not absolute(json_path).parent.is_dir():
        raise ConfigError(f"--json {json_path}: its folder does not exist; create it, or pass another file")
    from megads.cli.plan.question import Options, question_of

    options = Options(machine, device, nodes, ranks, max_memory, tokens)
    if found := trace_report(request, options, is_apply=is_apply, **traced):
        _show(*found, json_path)
        return
    from megads.cli.plan.report import command_line, report, sweep_report
    from megads.cli.plan.to_json import as_json

    question = question_of(request(), options)
    show_notes(question.notes)
    if question.num_hosts == 0:
        if is_apply:
            raise ConfigError("--apply needs --nodes N: the table over numbers of hosts has a layout for each")
        rows = question.sweep()
        lines, content = sweep_report(question, rows), as_json(question, sweep=rows)
    else:
        answer = question.answer(top)
        lines = [command_line(question, answer.found.best[0])] if is_apply else report(question, answer)
        content = as_json(question, answer=answer)
    _show(lines, content, json_path)


def _show(lines: list[str], content: str, json_path: str | None) -> None:
    if json_path != "-":
        click.echo("\n".join(lines))
    if json_path:
        _write(json_path, content)


def _write(path: str, content: str) -> None:
    if path == "-":
        click.echo(content)
        return
    from megads.storage.open_file import write_cure

    try:
        Path(absolute(path)).write_text(content + "\n", encoding="utf8")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}; {write_cure(error, 'pass another file')}") from None
