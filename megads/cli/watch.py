"""``megads watch``: look at a run while it runs."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from megads.monitor.run_state.watch import Watch


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, metavar="SECONDS", help="Seconds between updates (2)."
)
@click.option("--once", is_flag=True, help="Look once.")
def watch(run: Path, interval: float, once: bool) -> None:
    """Follow the run in folder RUN until it ends: progress, loss, speed, the last lines of its log.

    The exit code is 0 when the run is done, 75 when it stopped, 1 or 2 when it failed as it did.
    Ctrl-C only leaves the display.
    Without a terminal there is one line for each look that finds something new.
    """
    from megads.errors import ConfigError
    from megads.monitor.run_state.runs import is_run
    from megads.monitor.run_state.watch import Watch

    if run.exists() and not run.is_dir():
        raise ConfigError(f"{run}: not a folder; pass the folder that the run printed as 'folder'")
    if once and not (run.is_dir() and is_run(run)):
        raise ConfigError(f"{run}: no run here; pass the run folder, or drop --once to wait")
    if not run.parent.is_dir():
        raise ConfigError(f"{run}: {run.parent} not found; pass the folder that the run printed as 'folder'")
    with suppress(KeyboardInterrupt):
        if not (run.is_dir() and is_run(run)):
            click.echo(f"{run}: no run yet; waiting until it starts (Ctrl-C leaves)", err=True)
        while not (run.is_dir() and is_run(run)):
            time.sleep(min(interval, 1.0))
        watched = Watch(run)
        (_on_screen if sys.stdout.isatty() else _in_lines)(watched, interval, once)
        sys.exit(watched.exit_code())
    sys.exit(130)


def _in_lines(watched: Watch, interval: float, once: bool) -> None:
    shown = ""
    while True:
        watched.poll()
        if (line := watched.line()) != shown:
            shown = line
            click.echo(line)
        if once or watched.is_over():
            break
        time.sleep(interval)
    if watched.is_over() and shown != watched.headline():
        click.echo(watched.headline())


def _on_screen(watched: Watch, interval: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()

    def screen() -> Text:
        return Text("\n".join(watched.screen(console.width - 1, console.height - 1)), no_wrap=True)

    watched.poll()
    if once:
        console.print(screen())
        return
    with Live(screen(), console=console, auto_refresh=False) as live:
        while not watched.is_over():
            time.sleep(interval)
            watched.poll()
            live.update(screen(), refresh=True)
