"""A bar of progress on a terminal; elsewhere lines now and then, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from megads.text.units import duration

FIRST_S, EVERY_S = 10.0, 30.0
"""Until the first line, and between two."""


class Lines:
    """Prints ``megads: evaluating: 320 of 8900 windows, ETA 3min`` now and then.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, what: str, unit: str, now: Callable[[], float] = time.monotonic):
        self.what, self.unit, self.now = what, unit, now
        self.began, self.due = now(), now() + FIRST_S

    def __call__(self, done: int, total: int) -> None:
        """Print a line if it is time for one."""
        if not 0 < done < total or self.now() < self.due:
            return
        left = (self.now() - self.began) / done * (total - done)
        self.due = self.now() + EVERY_S
        click.echo(f"megads: {self.what}: {done} of {total} {self.unit}, ETA {duration(left)}", err=True)


@contextmanager
def bar(what: str, unit: str = "", *, lines: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr while something runs; what is yielded is called with how much is done, and of how much.

    ``what`` stands before the bar. ``unit`` is of what is counted, as ``"tensors"``; empty: bytes, with their speed.
    With ``lines`` a line now and then takes the place of the bar where stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield Lines(what, unit) if lines else lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn(unit)]
    columns = counted if unit else [DownloadColumn(), TransferSpeedColumn()]
    shown = (TextColumn(what), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
