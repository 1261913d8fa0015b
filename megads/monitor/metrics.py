"""``metrics.jsonl``: one object per logged iteration, readable while the run goes on."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from megads.monitor.log import LOG

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MetricsFile:
    """Appends rows to a JSON Lines file.

    On resume the rows after the checkpoint are dropped, so that the file holds each
    iteration once, as if the run had never stopped. While the disk is full rows wait in memory.

    Args:
        path: of the file.
        iteration: of the checkpoint that the run resumes from; 0 for a new run.
    """

    def __init__(self, path: Path, iteration: int = 0):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.writelines(_lines_until(path, iteration))
        os.replace(temporary, path)
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the run
        self._waiting = bytearray()
        self._is_told = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the file when this returns, unless the disk is full."""
        self._waiting += _line(row).encode()
        try:
            self._flush()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._is_told:
                LOG.warning("%s: %s; its rows wait in memory, free some space", self.file.name, error.strerror)
            self._is_told = True

    def _flush(self) -> None:
        while self._waiting:
            # A disk that fills up takes a part of a row; the rest of it comes first the next time.
            del self._waiting[: self.file.write(self._waiting)]
        self._is_told = False

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: rows are still waiting for space.
        """
        try:
            self._flush()
        finally:
            self.file.close()


def _lines_until(path: Path, iteration: int) -> Iterator[bytes]:
    """Yield the lines of the rows up to ``iteration``, as they are; a last one cut off by a kill is left out."""
    if not iteration or not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                row = orjson.loads(line)
            except ValueError:
                return
            if row["iteration"] <= iteration:
                yield line if line.endswith(b"\n") else line + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file; a last line cut off by a kill is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _line(row: Mapping[str, Any]) -> str:
    # JSON has no nan or infinity; null keeps the file readable by every parser.
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
