"""``metrics.jsonl``: one object per logged iteration, readable while the run goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricsFile:
    """Appends rows to a JSON Lines file.

    On resume the rows after the checkpoint are dropped, so that the file holds each
    iteration once, as if the run had never stopped.

    Args:
        path: of the file.
        iteration: of the checkpoint that the run resumes from; 0 for a new run.
    """

    def __init__(self, path: Path, iteration: int = 0):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_metrics(path) if row["iteration"] <= iteration] if iteration else []
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "w", encoding="utf8") as file:
            file.writelines(_line(row) for row in kept)
        os.replace(temporary, path)
        self.file = open(path, "a", encoding="utf8")  # noqa: SIM115 - lives as long as the run

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the file when this returns."""
        self.file.write(_line(row))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


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
