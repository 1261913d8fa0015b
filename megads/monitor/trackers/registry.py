"""The trackers: one row each, which opens it on rank 0 and says which package it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from megads.config.run_files import METRICS
from megads.config.schema import RunConfig
from megads.config.settings.log import TrackConfig
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.run_state.links import link_row
from megads.monitor.trackers.metrics_sink import MetricsSink, Tracker, TrackerStart
from megads.text.secrets import hidden


@dataclass(frozen=True)
class TrackerSpec:
    """One tracker; ``open_tracker(start)`` of its module returns it, and is imported only where it is used."""

    name: str  # for messages
    module: str
    is_asked_for: Callable[[TrackConfig], bool]  # of settings without auto
    package: str = ""  # to be installed
    settings: tuple[str, ...] = ()  # of the section track that ask for it, for messages
    without: str = ""  # the setting that disables it, for messages


TRACKERS = (
    TrackerSpec("metrics.csv", "csv_table", lambda track: track.csv),
    TrackerSpec("Prometheus", "prometheus", lambda track: bool(track.prometheus_address or track.prometheus_file)),
    TrackerSpec("OTLP", "otlp", lambda track: bool(track.otlp_endpoint)),
    TrackerSpec(
        "TensorBoard",
        "tensorboard",
        lambda track: track.tensorboard == "on",
        package="tensorboard",
        settings=("tensorboard", "tensorboard_dir"),
        without="NO_TENSORBOARD=1",
    ),
    TrackerSpec(
        "Weights & Biases",
        "wandb",
        lambda track: track.wandb_mode in ("online", "offline"),
        package="wandb",
        settings=("wandb_mode", "wandb_project"),
        without="WANDB_DISABLED=1",
    ),
)


def open_trackers(
    run: RunConfig, run_dir: Path, env: Mapping[str, str], *, iteration: int, samples: int, world_size: int
) -> MetricsSink:
    """Return what takes the rows of this start; see :class:`TrackerStart` for the arguments."""
    file = MetricsFile(run_dir / METRICS, iteration)  # first: a tracker may follow it
    if row := link_row(run_dir, iteration):
        file.write(row)
    start = TrackerStart(run, run_dir, env, iteration, samples, world_size)
    trackers = [tracker for spec in TRACKERS if spec.is_asked_for(run.track) for tracker in opened(spec, start)]
    return MetricsSink(file, trackers)


def opened(spec: TrackerSpec, start: TrackerStart) -> list[Tracker]:
    """Return the tracker of a row; none, with a line in the log, when it cannot be opened."""
    try:
        return [import_module(f"megads.monitor.trackers.{spec.module}").open_tracker(start)]
    except Exception as error:
        LOG.warning("%s cannot be used, the run continues: %s", spec.name, hidden(f"{type(error).__name__}: {error}"))
        return []
