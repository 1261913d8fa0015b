"""What a row costs the training process, by tracker; and a step besides a Weights & Biases that has no network.

    python benchmarks/trackers.py [--rows 2000] [--steps 200]

Prints the median and the 99th percentile of one row of 35 numbers handed over, of each tracker
alone, in milliseconds. Then steps of 50 ms (sums over an array, on one core), in turns without
and with Weights & Biases asked to be online where nothing answers: their median time, which
also shows who else wants the cores, and the processor time of the training process alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megads.config.run_folder import save_config
from megads.config.settings.log import TrackConfig
from megads.config.sources.resolve import resolve
from megads.monitor.metrics import MetricsFile
from megads.monitor.trackers.csv_table import Table
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.monitor.trackers.tensorboard import TensorBoard
from megads.monitor.trackers.wandb import Wandb

ROOT = Path(__file__).parents[1]
STEP_S = 0.05
NOWHERE = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}


def row(iteration: int) -> dict[str, Any]:
    """Return a row as a run writes it."""
    names = ("lm_loss", "learning_rate", "grad_norm", "loss_scale", "global_batch_size", "step_time_s", "tokens_per_s")
    numbers = {name: 1.234567 * iteration for name in names}
    more = {f"time/part{i}_s": 0.01 * i + iteration for i in range(25)}
    return {"iteration": iteration, "consumed_samples": 8 * iteration, **numbers, **more, "memory_bytes": 2**33}


def cost(tracks: MetricsSink, rows: int) -> tuple[float, float]:
    """Return median and 99th percentile of the milliseconds of a row."""
    times = []
    for iteration in range(1, rows + 1):
        one = row(iteration)
        started = time.perf_counter()
        tracks.write(one)
        times.append(1000 * (time.perf_counter() - started))
        time.sleep(0.001)
    tracks.close()
    return statistics.median(times), sorted(times)[int(0.99 * len(times))]


def run_folder(folder: Path) -> Path:
    """Make a run folder that asks for Weights & Biases online."""
    env = {"WANDB_MODE": "online", "WANDB_INIT_TIMEOUT": "20"}
    resolved = resolve("7B", env=env, machine="generic", root=ROOT)
    folder.mkdir(exist_ok=True)
    save_config(resolved.run, resolved.origins, folder / "config.yaml")
    return folder


def steps(tracks: MetricsSink, count: int, numbers: np.ndarray, repeats: int) -> list[tuple[float, float]]:
    """Return the seconds and the processor seconds of ``count`` steps, each of ``repeats`` sums and a row."""
    times = []
    for iteration in range(1, count + 1):
        started, used = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            numbers.sum()
        tracks.write(row(iteration))
        times.append((time.perf_counter() - started, time.process_time() - used))
    tracks.close()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        track = TrackConfig(log_timers=True, log_batch_size=True, log_memory=True)
        new = {"iteration": 0, "samples": 0, "world_size": 1}
        kinds: dict[str, Callable[[], list[Any]]] = {
            "metrics.jsonl alone": list,
            "+ CSV": lambda: [Table(folder / "metrics.csv")],
            "+ TensorBoard": lambda: [TensorBoard(track, folder / "tb", "run", run_dir=folder, **new)],
            "+ Weights & Biases": lambda: [Wandb(run_folder(folder), 0, NOWHERE)],
        }
        for kind, make in kinds.items():
            middle, high = cost(MetricsSink(MetricsFile(folder / "metrics.jsonl"), make()), asked.rows)
            print(f"{kind:20} {middle:.3f} ms a row, 99 % under {high:.3f} ms")
        _beside(folder, asked.steps)


def _beside(folder: Path, count: int) -> None:
    numbers = np.ones(4_000_000)
    used = time.process_time()  # not what others took meanwhile
    for _ in range(10):
        numbers.sum()
    repeats = max(1, round(10 * STEP_S / (time.process_time() - used)))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(6):
        with_it = turn % 2 == 1
        own = run_folder(folder / f"turn{turn}")
        file = MetricsFile(own / "metrics.jsonl")
        tracks = MetricsSink(file, [Wandb(own, 0, NOWHERE)] if with_it else [])
        found[with_it] += steps(tracks, count // 3, numbers, repeats)
        tracks.settle()
    for i, what in enumerate(("time", "processor time")):
        without, beside = (statistics.median(pair[i] for pair in found[key]) for key in (False, True))
        share = 100 * (beside / without - 1)
        print(f"{what} of a step: {1000 * without:.1f} ms, beside it {1000 * beside:.1f} ms: {share:+.1f} %")


if __name__ == "__main__":
    main()
