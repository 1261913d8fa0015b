"""``megads plot``: the curves of runs as a PNG, as a page, and in the terminal; ``megads plot schedule``."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from megads.monitor.plots.drawing import Drawing

# First word -> module and one line of help; any other first word is a run. A run folder of that name: ./schedule.
OTHERS = {"schedule": ("megads.cli.plot.schedule", "Draw learning rate, weight decay and batch before the run.")}
ENDS = (".png", ".html")
AXES = ("iteration", "tokens", "samples", "hours")
POINTS = 8000  # of all runs together, for each key of a page
PICTURE_POINTS = 700  # of all runs' curves of one kind in a PNG; a chart is 700 pixels wide
FEWEST = 150  # of one curve


def _other(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(OTHERS[name][0]), name)
    return command


class _RunsOrOther(click.Command):
    """Takes runs, unless the first word names another command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in OTHERS:
            return _other(args[0]).make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def below(self) -> dict[str, click.Command]:
        """Return the commands that the first word may name."""
        return {name: _other(name) for name in OTHERS}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in OTHERS.items()])


@click.command(cls=_RunsOrOther)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="PREFIX",
    help="Write PREFIX.png and PREFIX.html, or FILE.png or FILE.html only; default: plot.* in the run folder, "
    "of several runs here.",
)
@click.option("--terminal", is_flag=True, help="Draw in the terminal; files only with -o.")
@click.option("--keys", metavar="NAME,...", help="Charts (loss, lr, grad_norm, mfu ...) or keys of metrics.jsonl.")
@click.option("--x", "axis", type=click.Choice(AXES), default="iteration", help="Axis of the curves.")
@click.option("--smooth", type=click.IntRange(min=1), default=1, metavar="N", help="Lines are centred means of N rows.")
def plot(runs: tuple[Path, ...], output: str | None, terminal: bool, keys: str | None, axis: str, smooth: int) -> None:
    """Draw loss, validation, learning rate, gradient norm, speed and more of runs.

    RUN is a run folder, its metrics.jsonl, or a checkpoint in it.
    """
    from megads.monitor.plots.drawing import draw
    from megads.monitor.plots.panels import is_wanted, wanted
    from megads.monitor.plots.source import names_of, read_run

    chosen = [key.strip() for key in (keys or "").split(",") if key.strip()]
    patterns = wanted(chosen)
    paths = list(dict.fromkeys(runs))
    read = [
        read_run(path, lambda key: is_wanted(key, patterns), name)
        for path, name in zip(paths, names_of(paths), strict=True)
    ]
    most = max(400, POINTS // len(read) // 2)
    if terminal:
        _in_terminal(draw(read, keys=chosen, axis=axis, smooth=smooth, most=200))
    if output or not terminal:
        default = str(read[0].path.with_name("plot") if len(read) == 1 else "plot")
        few = draw(read, keys=chosen, axis=axis, smooth=smooth, most=max(FEWEST, PICTURE_POINTS // len(read)))
        _to_files(few, draw(read, keys=chosen, axis=axis, smooth=smooth, most=most), _files(output or default))


def _in_terminal(drawing: Drawing) -> None:
    from megads.monitor.plots.sketch import chart_sketch

    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    for chart in drawing.charts:
        click.echo(chart_sketch(drawing, chart, width) + "\n")


def _files(output: str) -> list[str]:
    """Return the files to write: FILE.png and FILE.html name one file each."""
    given = Path(output)
    return [output] if given.suffix.lower() in ENDS and given.stem else [output + end for end in ENDS]


def _to_files(picture: Drawing, page: Drawing, names: list[str]) -> None:
    from megads.errors import ConfigError
    from megads.monitor.plots.html.page import save_page
    from megads.monitor.plots.picture import save_picture

    for name in names:
        try:
            if name.lower().endswith(".png"):
                save_picture(picture, Path(name))
            else:
                save_page(page, Path(name))
        except OSError as error:
            raise ConfigError(f"{name}: cannot be written: {error.strerror}; -o PREFIX names another place") from None
        click.echo(name)
