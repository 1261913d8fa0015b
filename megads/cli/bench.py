"""``megads bench``: what the devices of this job compute, how fast, and whether it is right."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.generate import is_rank, start_ranks
from megads.cli.options.request import absolute, checkout, settings_command
from megads.errors import ConfigError
from megads.storage.open_file import write_cure
from megads.text.units import duration

if TYPE_CHECKING:
    from megads.bench.parts import Part
    from megads.bench.results import PartResult, Report
    from megads.launch.request import TrainRequest

NONE_YET = "None yet.\n"
"""Below the heading of the reports in docs/gpu.md, before the first one."""

EVERY_S = 30.0
"""Between two lines of progress where stderr is no terminal."""


@settings_command
@click.option("-n", "--ranks", type=click.IntRange(min=1), help="Total ranks; default: every accelerator of the job.")
@click.option("--tiny", "is_tiny", is_flag=True, help="All parts on small shapes, in less than a minute on a CPU.")
@click.option("--minutes", type=click.FloatRange(0.1, 60), default=8.5, show_default=True, help="Limit for everything.")
@click.option("--parts", default="", metavar="NAMES", help="Only these, with commas between them.")
@click.option("--json", "json_path", metavar="FILE", help="Write all numbers there, after each part.")
@click.option("--report", "report_path", metavar="FILE", help="Append a Markdown section there, e.g. docs/gpu.md.")
@click.option(
    "--roofline", "is_estimate", is_flag=True, help="Estimate a step of a preset on --device; no device needed."
)
@click.option("--device", default="", metavar="NAME", help="Of --roofline: a100, h100, h200, mi250x, mi300x, pvc.")
@click.option("--markdown", is_flag=True, help="Print the table of --roofline in docs/gpu.md.")
def bench(
    request: Callable[[], TrainRequest],
    ranks: int | None,
    is_tiny: bool,
    minutes: float,
    parts: str,
    json_path: str | None,
    report_path: str | None,
    is_estimate: bool,
    device: str,
    markdown: bool,
) -> None:
    """Measure the devices of this job: right numbers first, then rates. See docs/gpu.md.

    Exit codes: 0 all right, 1 a number is wrong or a part failed, 2 a wrong option.
    """
    started = time.monotonic()
    measured = [f"--json {json_path}"] * bool(json_path) + [f"--report {report_path}"] * bool(report_path)
    measured += [f"--parts {parts}"] * bool(parts) + ["--tiny"] * is_tiny
    if is_estimate and measured:
        raise ConfigError(f"{measured[0]} is for what is measured, not for --roofline; leave it out")
    if is_estimate:
        from megads.cli.roofline import show_roofline, table

        if markdown:
            click.echo(table(), nl=False)
        else:
            show_roofline(request(), device, ranks or 1)
        return
    asked = request()
    given = [f"--preset {asked.preset}"] * bool(asked.preset) + [f"--set {pair}" for pair in asked.pairs]
    given += [" ".join(flag).strip() for flag in asked.flags] + [f"--device {device}"] * bool(device)
    given += ["--markdown"] * markdown
    if given:
        raise ConfigError(f"{given[0]} is for --roofline: what is measured has models of its own; leave it out")
    from megads.bench.parts import chosen

    wanted = chosen(parts)
    for option, path in (("--json", json_path), ("--report", report_path)):
        if path and not absolute(path).parent.is_dir():
            raise ConfigError(f"{option} {path}: its folder does not exist; create it, or pass another file")
    _start(ranks)
    _measure(wanted, started + minutes * 60, is_tiny, Files(json_path, report_path))


def _start(ranks: int | None) -> None:
    """Start the ranks, or let those that the user started meet; return in a rank that has met the others."""
    from megads.cluster.ranks import find_ranks
    from megads.config.schema import RunConfig
    from megads.launch.any_program import become_program, count_ranks
    from megads.launch.preflight.allocator import allocator_variables

    root, hostname = checkout(), socket.gethostname()
    if not is_rank():
        count = ranks or count_ranks(os.environ, hostname=hostname, root=root)
        if count > 1:
            sys.exit(start_ranks(count))
    elif not os.environ.get("MASTER_ADDR"):
        command = [sys.executable, "-m", "megads", *sys.argv[1:]]
        become_program(find_ranks(os.environ), command, os.environ, hostname=hostname, root=root)
    # As in a run; torch reads it when it is imported.
    os.environ.update(allocator_variables(RunConfig(), os.environ))


def _measure(parts: tuple[Part, ...], ends: float, is_tiny: bool, files: Files) -> None:
    """Measure on this rank until ``ends`` at most, by the monotonic clock; loading torch counts."""
    from megads.bench.run import Wish, leave, run_bench
    from megads.cluster.machine import machine_name
    from megads.cluster.ranks import find_ranks

    info, root = find_ranks(os.environ), checkout()
    machine = machine_name(socket.gethostname(), os.environ, root)
    limit_s = max(1.0, ends - time.monotonic())
    wish = Wish(parts, limit_s, root, machine, is_tiny)
    leave(run_bench(wish, info, os.environ, Terminal(files, limit_s)))


class Files:
    """The files that results are kept in, written again after each part: a killed benchmark leaves what it had.

    Raises:
        ConfigError: a page that is to be appended to cannot be read.
    """

    def __init__(self, json_path: str | None, report_path: str | None):
        self.json_path = absolute(json_path) if json_path else None
        self.report_path = absolute(report_path) if report_path else None
        self.page = ""
        if self.report_path and self.report_path.exists():
            try:
                self.page = self.report_path.read_text(encoding="utf8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--report {report_path}: cannot be read ({error}); pass another file") from None

    def write(self, report: Report) -> None:
        """Write ``report`` to each file."""
        if self.json_path:
            _replace(self.json_path, report.json(), "--json")
        if self.report_path:
            before = self.page.replace(NONE_YET, "").rstrip()
            _replace(self.report_path, f"{before}\n\n{report.markdown()}".lstrip(), "--report")


def _replace(path: Path, text: str, option: str) -> None:
    """Write a file as a whole: who reads it meanwhile finds the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; {write_cure(error, 'pass another file')}") from None


class Terminal:
    """Shows parts on stdout as they end, and on stderr what is measured now."""

    def __init__(self, files: Files, limit_s: float):
        self.files, self.limit_s = files, limit_s
        self.started = self.due = time.monotonic()
        self.is_terminal = sys.stderr.isatty()
        self.has_head = False

    def progress(self, text: str, done: float) -> None:
        """Show one line: on a terminal at once, elsewhere now and then."""
        now = time.monotonic()
        left = max(0.0, self.limit_s - (now - self.started))
        line = f"megads: bench: {text} ({100 * done:.0f}% of the time used, ETA at most {duration(left)})"
        if self.is_terminal:
            click.echo(f"\r\x1b[K{line[:110]}", nl=False, err=True)
        elif now >= self.due:
            self.due = now + EVERY_S
            click.echo(line, err=True)

    def part(self, result: PartResult) -> None:
        """Show a part that has ended."""
        if self.is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)
        click.echo(result.lines())

    def begin(self, report: Report) -> None:
        """Show where this runs."""
        for name, value in report.facts.items():
            click.echo(f"{name.replace('_', ' '):<12} {value}")
        click.echo()

    def keep(self, report: Report) -> None:
        """Write the files, and the verdict when everything has ended."""
        self.files.write(report)
        if report.is_complete:
            click.echo(f"bench        {report.verdict()}")
