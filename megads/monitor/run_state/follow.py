"""Follow the rows of a metrics file that a run is writing, or will write, or starts over."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from megads.monitor.columns import WORTH_SPLITTING, Column, cores, read_columns, with_means
from megads.monitor.rows import Damage, parse_rows
from megads.monitor.throughput import SPEED_STEPS
from megads.storage.open_file import open_binary

CURVES = ("lm_loss", "valid_loss")
MARK = 128  # bytes before the place read up to, by which the file is known again
MOST = 1 << 23  # bytes parsed at once


class Follower:
    """What is known so far of a metrics file, a little more after each :meth:`poll`.

    A file that was replaced (a run that resumes drops the rows after its checkpoint) or has
    become shorter is read again. A line counts once its end is there.

    Args:
        path: of the file, which may come later.
    """

    def __init__(self, path: Path):
        self.path = path
        self.forget()

    def forget(self) -> None:
        """Start again at the first row."""
        self.steps: deque[dict[str, Any]] = deque(maxlen=SPEED_STEPS)  # the last rows of steps
        self.validation: dict[str, Any] = {}  # the last row of one, empty before the first
        self.curves = {key: (array("d"), array("f")) for key in CURVES}  # iterations and values
        self.damage = Damage()  # rows that differ from their checksums; they are skipped
        self._offset, self._mark = 0, b""

    def poll(self) -> bool:
        """Take in what is new; return whether there was anything."""
        try:
            size = self.path.stat().st_size
            with open_binary(self.path) as file:
                if not self._is_known(file):
                    self.forget()
                if not self._offset and size > WORTH_SPLITTING:
                    self._jump(size)
                file.seek(self._offset)
                return self._take(file)
        except OSError:  # not there yet, or its file system does not answer at present
            return False

    def columns(self) -> dict[str, Column]:
        """Return the curves as columns, without those that have no point."""
        return {key: Column(np.array(x), np.array(y)) for key, (x, y) in self.curves.items() if len(x)}

    def median(self, key: str) -> float | None:
        """Return the median of a key over the last steps, None when they do not have it."""
        values = [row[key] for row in self.steps if isinstance(row.get(key), int | float)]
        return float(np.median(values)) if values else None

    def _is_known(self, file: Any) -> bool:
        file.seek(self._offset - len(self._mark))
        return bool(file.read(len(self._mark)) == self._mark)

    def _take(self, file: Any) -> bool:
        new = False
        while block := file.read(MOST):
            lines, end, _ = block.rpartition(b"\n")
            if not end:
                break
            rows = parse_rows(lines, self.damage, self._offset)
            self._offset += len(lines) + 1
            self._mark = (self._mark + lines + end)[-MARK:]
            for row in rows:
                self._add(with_means(row))
            new = True
            file.seek(self._offset)
        return new

    def _add(self, row: dict[str, Any]) -> None:
        iteration = row.get("iteration")
        if not isinstance(iteration, int | float):
            return
        if "lm_loss" in row:
            while self.steps and self.steps[-1]["iteration"] >= iteration:  # the run went back
                self.steps.pop()
            self.steps.append(row)
        if "valid_loss" in row:
            self.validation = row
        for key, (x, y) in self.curves.items():
            if isinstance(value := row.get(key), int | float):
                if len(x) and x[-1] >= iteration:
                    place = bisect_left(x, iteration)
                    del x[place:], y[place:]
                x.append(iteration)
                y.append(value)

    def _jump(self, size: int) -> None:
        """Read what a long run has written so far, but for the last lines, as fast as can be."""
        read = read_columns(self.path, lambda key: key in CURVES, processes=cores(), damage=self.damage)
        for key, column in read.items():
            numbers = column.numbers()
            self.curves[key] = (array("d", numbers.x.tolist()), array("f", numbers.y.tolist()))
        with open_binary(self.path) as file:
            file.seek(size - (1 << 20))
            file.readline()
            self._offset = file.tell()
            file.seek(self._offset - MARK)
            self._mark = file.read(MARK)
