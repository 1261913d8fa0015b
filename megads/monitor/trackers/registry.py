"""Open what the settings ask for, on rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.config.schema import RunConfig
from megads.monitor.metrics import MetricsFile
from megads.monitor.trackers.metrics_sink import MetricsSink, Tracker, opened

METRICS, CSV = "metrics.jsonl", "metrics.csv"


def open_tracks(
    run: RunConfig, run_dir: Path, env: Mapping[str, str], *, iteration: int, samples: int, world_size: int
) -> MetricsSink:
    """Return what takes the rows of this start; what cannot be opened is reported and skipped.

    Args:
        run: derived settings.
        run_dir: the run folder.
        env: this process's environment, for the library of Weights & Biases.
        iteration: of the checkpoint that the run resumes from; 0 for a new run.
        samples: consumed until then.
        world_size: ranks.
    """
    track = run.track
    trackers: list[Tracker] = []
    if track.csv:
        from megads.monitor.trackers.csv_table import Table

        trackers += opened(CSV, lambda: Table(run_dir / CSV, iteration))
    if track.tensorboard == "on":
        from megads.monitor.trackers.tensorboard import TensorBoard

        folder = Path(track.tensorboard_dir) if track.tensorboard_dir else run_dir / "tensorboard"
        points: dict[str, Any] = {
            "run_dir": run_dir,
            "iteration": iteration,
            "samples": samples,
            "world_size": world_size,
        }
        trackers += opened("TensorBoard", lambda: TensorBoard(track, folder, run.name or run_dir.name, **points))
    if track.wandb_mode in ("online", "offline"):
        from megads.monitor.trackers.wandb import Wandb

        trackers += opened("Weights & Biases", lambda: Wandb(run_dir, iteration, env, run_id=track.wandb_id))
    return MetricsSink(MetricsFile(run_dir / METRICS, iteration), trackers)
