"""``megads plan``: the best layouts of a model on so many hosts of a machine, without either."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import absolute, settings_command, show_notes
from megads.cli.plan.trace import trace_options, trace_report
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.cli.plan.question import Question
    from megads.launch.request import TrainRequest


@settings_command
@click.option("--machine", default="", metavar="NAME", help="A machine of envs/; default: MACHINE, or this one.")
@click.option("--device", default="", metavar="NAME", help="A device, on its usual hosts or in place of the machine's.")
@click.option("--nodes", type=click.IntRange(min=1), help="Hosts; without them a table over numbers of hosts.")
@click.option("--ranks", type=click.IntRange(min=1), help="Total ranks, instead of --nodes.")
@click.option("--max-memory", type=float, default=0.9, show_default=True, help="Share of a device's memory to use.")
@click.option("--tokens", default="", metavar="N", help="Token budget, e.g. 1T or 300B; default: TRAIN_TOKENS.")
@click.option("--anchor", default="", metavar="PATH", help="A run, or bench --json FILE: corrects the model.")
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Layouts to show.")
@click.option("--apply", "is_apply", is_flag=True, help="Print the command of the best layout, to paste.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything there; - prints it.")
@click.option("--png", "png_path", metavar="FILE", help="Draw memory by kind, the timeline and the layouts there.")
@click.option("--html", "html_path", metavar="FILE", help="The same as one page that needs no network.")
@trace_options
def plan(request: Callable[[], TrainRequest], **options: Any) -> None:
    """Plan a run without the machine: the best layouts, why the others lose, time, energy, cost. See docs/planner.md.

    Settings of the environment and the command line are held; every other setting of the layout is searched.
    """
    _check(options)
    from megads.cli.plan.question import Options, question_of

    names = ("machine", "device", "nodes", "ranks", "max_memory", "tokens", "anchor")
    given = Options(**{name: options[name] for name in names})
    of_trace = {name: options[name] for name in ("is_apply", "is_trace", "rank", "world")}
    if found := trace_report(request, given, **of_trace):
        _show(found[0], options)
        _write(options["json_path"], lambda: found[1])
        return
    question = question_of(request(), given)
    show_notes(question.notes)
    if question.num_hosts:
        _plan(question, options)
    else:
        _sweep(question, options)


OTHER_FILE = "pass another file"
FILES = {"json_path": "--json", "png_path": "--png", "html_path": "--html"}


def _check(options: dict[str, Any]) -> None:
    """Refuse options that contradict each other, and files that cannot be written.

    Raises:
        ConfigError: one does.
    """
    of_plan = {"--png": "png_path", "--html": "html_path", "--anchor": "anchor"}
    if options["is_trace"] and (given := [option for option, name in of_plan.items() if options[name]]):
        raise ConfigError(f"{given[0]} is for a search of layouts, and --trace runs the layout of the settings")
    if options["is_apply"] and options["json_path"] == "-":
        raise ConfigError("--apply and --json - both print to stdout; pass --json FILE")
    for name, option in FILES.items():
        path = options[name]
        if path == "":
            raise ConfigError(f"{option} is empty; pass a file")
        if path == "-" and name != "json_path":
            raise ConfigError(f"{option} -: a picture is a file; pass {option} plan{option.replace('--', '.')}")
        if path and path != "-" and not absolute(path).parent.is_dir():
            raise ConfigError(f"{option} {path}: its folder does not exist; create it, or pass another file")
        if path and path != "-" and absolute(path).is_dir():
            raise ConfigError(f"{option} {path} is a folder; pass a file")


def _plan(question: Question, options: dict[str, Any]) -> None:
    """Plan one number of hosts."""
    from megads.cli.plan.report import command_line, report
    from megads.cli.plan.to_json import as_json

    answer = question.answer(options["top"])
    is_apply, best = options["is_apply"], answer.found.best[0]
    _show([command_line(question, best)] if is_apply else report(question, answer), options)
    _write(options["json_path"], lambda: as_json(question, answer=answer))
    if options["png_path"] or options["html_path"]:
        from megads.monitor.plots import plan as pictures

        days = [each.campaign.days for each in answer.costs]
        if options["png_path"]:
            pictures.draw(answer.found, absolute(options["png_path"]), days)
        if options["html_path"]:
            pictures.page(answer.found, absolute(options["html_path"]), days)


def _sweep(question: Question, options: dict[str, Any]) -> None:
    """Plan several numbers of hosts."""
    from megads.cli.plan.sweep import sweep_report
    from megads.cli.plan.to_json import as_json

    if options["is_apply"]:
        raise ConfigError("--apply needs --nodes N: without it each number of hosts has a layout of its own")
    rows = question.sweep()
    _show(sweep_report(question, rows), options)
    _write(options["json_path"], lambda: as_json(question, sweep=rows))
    if options["png_path"] or options["html_path"]:
        from megads.monitor.plots import plan as pictures

        if options["png_path"]:
            pictures.draw_hosts(rows, absolute(options["png_path"]))
        if options["html_path"]:
            pictures.page_hosts(rows, absolute(options["html_path"]))


def _show(lines: list[str], options: dict[str, Any]) -> None:
    if options["json_path"] != "-":
        click.echo("\n".join(lines))


def _write(path: str | None, content: Callable[[], str]) -> None:
    if not path:
        return
    if path == "-":
        click.echo(content())
        return
    from megads.storage.open_file import write_cure
    from megads.storage.whole_file import whole_file

    text = content() + "\n"
    try:
        with whole_file(absolute(path)) as target, open(target, "w", encoding="utf8", opener=_open) as file:
            file.write(text)
    except OSError as error:
        cure = "start the reader of this pipe first" if error.errno == errno.ENXIO else write_cure(error, OTHER_FILE)
        raise ConfigError(f"--json {path}: {error.strerror}; {cure}") from None


def _open(path: str, flags: int) -> int:
    """Open a file; one without a reader, of a pipe, fails at once."""
    handle = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(handle, True)
    return handle
