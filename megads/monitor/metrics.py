"""``metrics.jsonl``: one object per logged iteration, readable during the run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.monitor.log import LOG
from megads.monitor.rows import Damage, parse_rows, sealed
from megads.storage.open_file import open_binary
from megads.text.plural import plural


class MetricsFile:
    """Appends rows to a JSON Lines file.

    On resume the rows after the checkpoint are dropped, so that the file holds each
    iteration once, as if the run had never stopped. While it cannot be written rows wait in memory.

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
        self._is_reported = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the file when this returns, unless that cannot be written now."""
        self._waiting += _line(row).encode()
        try:
            self._flush()
        except OSError as error:
            # A full disk, or a file system that has a bad moment: neither is a reason to end a run.
            if not self._is_reported:
                LOG.warning(
                    "%s: %s; its rows are kept in memory until it can be written", self.file.name, error.strerror
                )
            self._is_reported = True

    def _flush(self) -> None:
        while self._waiting:
            # A disk that fills up takes a part of a row; the rest of it comes first the next time.
            del self._waiting[: self.file.write(self._waiting)]
        self._is_reported = False

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
    """Yield the lines of the rows up to ``iteration``, as they are; what is no row is skipped."""
    if not iteration or not path.is_file():
        return
    broken, damage, offset = 0, Damage(), 0
    with open_binary(path) as file:
        for line in file:
            damaged, rows = damage.count, parse_rows(line, damage, offset)
            offset += len(line)
            if not rows or not isinstance(rows[0].get("iteration"), int):
                # Half a line that a kill left, zeros after a crash, or a damaged line.
                broken += damage.count == damaged
            elif rows[0]["iteration"] <= iteration:
                yield line if line.endswith(b"\n") else line + b"\n"
    damage.report(path)
    if broken:
        LOG.warning("%s: %s no rows, skipped", path, f"{plural(broken, 'line')} {'is' if broken == 1 else 'are'}")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file, without their checksums.

    What is no row, as a last line cut off by a kill, is skipped. Rows that differ from their checksums are skipped
    with one line in the log.
    """
    if not path.is_file():
        return []
    damage = Damage()
    with open_binary(path) as file:
        rows = parse_rows(file.read(), damage)
    damage.report(path)
    return [row for row in rows if isinstance(row.get("iteration"), int)]


def _line(row: Mapping[str, Any]) -> str:
    # JSON has no nan or infinity; null keeps the file readable by every parser.
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return sealed(json.dumps(finite)) + "\n"
