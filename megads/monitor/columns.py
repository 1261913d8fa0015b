"""Read ``metrics.jsonl`` into columns of numbers: a million rows in some seconds, also while a run writes it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megads.cluster.parent import end_with
from megads.monitor.rows import Damage, parse_rows
from megads.storage.open_file import open_binary
from megads.storage.reading import no_collection

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BLOCK = 1 << 18  # bytes read and parsed at once; what fits the cache is parsed in half the time
WORTH_SPLITTING = 1 << 25  # bytes of a file, for several processes
MOST_PROCESSES = 4

MEANS = {"lm_loss_mean": "lm_loss", "sop_loss_mean": "sop_loss"}
"""Keys of rows with LOG_INTERVAL > 1 -> what they are the mean of, over the steps since the row before."""

Wanted = Callable[[str], bool]
# Keys -> parts; a part has the iterations [n] float64 of its rows and their values [keys, n] float32.
Parts = dict[tuple[str, ...], list[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Column:
    """The values of one key: ``x`` iterations, float64, ascending; ``y`` float32, nan where the row has null."""

    x: np.ndarray
    y: np.ndarray

    def numbers(self) -> Column:
        """Return the column without its nans."""
        kept = np.isfinite(self.y)
        return self if kept.all() else Column(self.x[kept], self.y[kept])


Columns = Mapping[str, Column]


def read_columns(path: Path, wanted: Wanted, *, processes: int = 1, damage: Damage | None = None) -> dict[str, Column]:
    """Return the columns of the keys for which ``wanted`` is true.

    Where a row has the mean of a key over the steps since the row before (:data:`MEANS`), the
    column of that key has the mean: what the log shows.

    Of rows with the same iteration the last one counts, for a run that went back. Lines that
    are no JSON objects (half a line at the end, zeros after a crash) are skipped. So are rows that
    differ from their checksums, with one line in the log.

    Args:
        path: of a file with one JSON object per line, each with ``iteration``.
        wanted: asked once for each key of the file.
        processes: that may read parts of a large file in parallel (by fork).
        damage: takes what differs from its checksum; None: it is logged.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    processes = processes if size > WORTH_SPLITTING else 1
    spans = list(pairwise(_cuts(path, size, processes)))
    found: Parts = defaultdict(list)
    seen = Damage() if damage is None else damage
    for keys, iterations, values in _all_parts(
        path, spans, lambda key: wanted(key) or wanted(MEANS.get(key, key)), seen
    ):
        found[keys].append((iterations, values))
    if damage is None:
        seen.report(path)
    columns = _columns(found)
    for mean, key in MEANS.items():
        if mean in columns and key in columns:
            columns[key] = _with_means(columns[key], columns[mean])
        if not wanted(mean):
            columns.pop(mean, None)
    return columns


def with_means(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with means in the place of the values of its last step, where it has means."""
    return {**row, **{key: row[mean] for mean, key in MEANS.items() if mean in row}}


def _with_means(column: Column, means: Column) -> Column:
    place = np.minimum(np.searchsorted(column.x, means.x), len(column.x) - 1)
    same = column.x[place] == means.x
    y = column.y.copy()
    y[place[same]] = means.y[same]
    return Column(column.x, y)


def cores() -> int:
    """Return how many processes are worth starting here."""
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)))


def _cuts(path: Path, size: int, parts: int) -> list[int]:
    """Return offsets of line starts that cut a file into about equal ``parts``."""
    cuts = [0]
    with open_binary(path) as file:
        for part in range(1, parts):
            file.seek(size * part // parts)
            file.readline()
            cuts.append(max(cuts[-1], min(size, file.tell())))
    return [*cuts, size]


def _all_parts(
    path: Path, spans: Sequence[tuple[int, int]], wanted: Wanted, damage: Damage
) -> Iterator[tuple[tuple[str, ...], np.ndarray, np.ndarray]]:
    """Yield the parts of all spans in the order of the file; the first is read here, the others by forked processes."""
    import multiprocessing  # what looks at a run before it starts does not need it

    fork = multiprocessing.get_context("fork") if len(spans) > 1 else None
    others = []
    for span in spans[1:]:
        assert fork is not None
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=_send_parts, args=(os.getpid(), there, path, span, wanted), daemon=True)
        process.start()
        there.close()
        others.append((process, here))
    yield from _parts(path, spans[0], wanted, damage)
    for process, here in others:
        while not isinstance(part := here.recv(), Damage):
            yield part
        damage.extend(part)
        process.join()


def _send_parts(parent: int, there: Connection, path: Path, span: tuple[int, int], wanted: Wanted) -> None:
    end_with(parent)
    # All at once in the end: a pipe that is full would make this process wait for its turn.
    damage = Damage()
    for part in [*_parts(path, span, wanted, damage), damage]:
        there.send(part)


def _parts(
    path: Path, span: tuple[int, int], wanted: Wanted, damage: Damage
) -> Iterator[tuple[tuple[str, ...], np.ndarray, np.ndarray]]:
    kept: dict[tuple[str, ...], tuple[str, ...]] = {}
    with no_collection():
        for offset, block in _blocks(path, *span):
            alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
            for row in parse_rows(block, damage, offset):
                alike[tuple(row)].append(row)
            for names, rows in alike.items():
                if names not in kept:
                    kept[names] = tuple(name for name in names if name != "iteration" and wanted(name))
                if kept[names] and "iteration" in names:
                    yield kept[names], *_numbers(rows, kept[names])


def _blocks(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of ``[start, end)`` with their offset; the last line may have no end."""
    with open_binary(path) as file:
        file.seek(start)
        while start < end and (block := file.read(min(BLOCK, end - start))):
            if not block.endswith(b"\n"):
                block += file.readline()
            yield start, block
            start += len(block)


def _numbers(rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the iterations [n] and the values [keys, n] of rows that all have ``keys``."""
    cells = list(map(itemgetter("iteration", *keys), rows))
    try:
        flat = np.fromiter(chain.from_iterable(cells), np.float64, len(rows) * (1 + len(keys)))
    except (TypeError, ValueError):
        known = (cell if isinstance(cell, int | float) else np.nan for cell in chain.from_iterable(cells))
        flat = np.fromiter(known, np.float64)
    table = flat.reshape(len(rows), 1 + len(keys))
    with np.errstate(over="ignore"):
        return table[:, 0].copy(), table[:, 1:].T.astype(np.float32)


def _columns(found: Parts) -> dict[str, Column]:
    """Return the columns of all parts. Keys that stand in the same rows share one array of iterations."""
    parts_of: dict[str, list[Column]] = defaultdict(list)
    for keys in list(found):
        parts = found.pop(keys)  # one by one, for the memory
        x = np.concatenate([iterations for iterations, _ in parts])
        order = _order(x)
        x = x if order is None else x[order]
        for number, key in enumerate(keys):
            y = np.concatenate([values[number] for _, values in parts])
            parts_of[key].append(Column(x, y if order is None else y[order]))
    return {key: _merged(of_key) if len(of_key) > 1 else of_key[0] for key, of_key in parts_of.items()}


def _merged(columns: Sequence[Column]) -> Column:
    x, y = (np.concatenate([getattr(part, axis) for part in columns]) for axis in "xy")
    order = _order(x)
    return Column(x, y) if order is None else Column(x[order], y[order])


def _order(x: np.ndarray) -> np.ndarray | None:
    """Return the places of the last row of each iteration, ascending; None when ``x`` is that already."""
    if np.all(x[1:] > x[:-1]):
        return None
    order = np.argsort(x, kind="stable")
    order = order[np.isfinite(x[order])]
    last = np.append(x[order][1:] != x[order][:-1], True)[: len(order)]
    return order[last]
