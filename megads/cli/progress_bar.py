"""A bar of progress on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(what: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr while something runs; what is yielded is called with how much is done, and of how much.

    ``what`` stands before the bar. ``unit`` is of what is counted, as ``"tensors"``; empty: bytes, with their speed.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
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
