"""``metrics.csv``: the rows of ``metrics.jsonl`` as a table."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.monitor.trackers.metrics_sink import Tracker, TrackerStart

NAME = "metrics.csv"
COLUMNS = (
    *("iteration", "consumed_samples", "consumed_tokens", "lm_loss", "learning_rate", "weight_decay", "grad_norm"),
    *("loss_scale", "skipped_iterations", "nan_iterations", "global_batch_size", "step_time_s", "tokens_per_s"),
    *("tokens_per_s_per_device", "tflops_per_device", "mfu", "data_wait_s", "data_wait_share", "memory_bytes"),
    *("hardware_tflops_per_device", "hfu", "rejected_iterations", "rollbacks", "lm_loss_mean"),
    *("time/data_s", "time/forward_s", "time/backward_s", "time/communication_s", "time/optimizer_s", "time/other_s"),
    *("time/save_s", "valid_loss", "valid_ppl", "test_loss", "save_s", "save_pause_s", "energy_kwh", "co2_kg"),
    *("energy_estimated_kwh", "straggler_rank", "straggler_ratio", "passed_over_iterations", "rolled_back_to"),
    *("rollback_reason", "rejected_loss", "mfu_full", "mfu_causal"),
)
"""Always there, in this order; others follow in the order in which they first came."""


def open_tracker(start: TrackerStart) -> Table:
    """Return the table of a run."""
    return Table(start.run_dir / NAME, start.iteration)


class Table(Tracker):
    """Appends rows to a CSV file; what a row does not have is empty.

    On resume the rows after the checkpoint are dropped, as those of ``metrics.jsonl`` are.

    Args:
        path: of the file.
        iteration: of the checkpoint that the run resumes from; 0 for a new run.
    """

    name = NAME

    def __init__(self, path: Path, iteration: int = 0):
        self.path = path
        self.columns = list(COLUMNS)
        if iteration and path.is_file():
            with open(path, encoding="utf8", newline="") as file:
                self.columns = list(csv.DictReader(file).fieldnames or COLUMNS)
        self._rewrite(iteration)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the file when this returns."""
        new = [name for name in row if name not in self.columns]
        if new:
            self.file.close()
            self.columns += new
            self._rewrite(None)
        self.writer.writerow([_cell(row.get(name)) for name in self.columns])
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _rewrite(self, iteration: int | None) -> None:
        """Write the file again with today's columns and its rows up to ``iteration``, None: all, and open it."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "w", encoding="utf8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self._rows(iteration))
        os.replace(temporary, self.path)
        self.file = open(self.path, "a", encoding="utf8", newline="")  # noqa: SIM115 - lives as long as the run
        self.writer = csv.writer(self.file, lineterminator="\n")

    def _rows(self, iteration: int | None) -> Iterator[dict[str, str]]:
        if iteration == 0 or not self.path.is_file():
            return
        with open(self.path, encoding="utf8", newline="") as file:
            for row in csv.DictReader(file):
                # A last line that a kill cut off has cells missing.
                if None in row.values() or not row["iteration"].isdigit():
                    continue
                if iteration is None or int(row["iteration"]) <= iteration:
                    yield row


def _cell(value: Any) -> Any:
    # As in metrics.jsonl, where null stands for what is no number.
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
