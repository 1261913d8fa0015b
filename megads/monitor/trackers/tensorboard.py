"""Event files for TensorBoard, with the tags that users of Megatron-LM know.

Every tag of a step is there twice, over iterations and as ``<tag> vs samples`` over samples.
TensorBoard's own light writer is used: it does without torch, in 0.2 s and 20 MB.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.config.settings.log import TrackConfig
from megads.monitor.trackers.metrics_sink import Tracker, TrackerStart

VS_SAMPLES = " vs samples"

STEP_TAGS = {
    "lm_loss": "lm loss",
    "learning_rate": "learning-rate",
    "weight_decay": "weight-decay",
    "global_batch_size": "batch-size",
    "loss_scale": "loss-scale",
    "grad_norm": "grad-norm",
    "num_zeros": "num-zeros",
    "params_norm": "params-norm",
    "step_time_s": "iteration-time",
    "memory_bytes": "mem-max-allocated-bytes",
}
"""Entry of a row -> its tag."""

SWITCHES = {
    "learning-rate": "log_learning_rate",
    "batch-size": "log_batch_size",
    "loss-scale": "log_loss_scale",
    "iteration-time": "log_timers",
    "mem-max-allocated-bytes": "log_memory",
}
"""Tag -> the setting without which it is dropped."""

ENERGY = ("energy_kwh", "co2_kg")
ON_ITERATIONS = ("mem-max-allocated-bytes", "world-size", "throughput/", *ENERGY)  # not over samples
THROUGHPUT = {
    *("tokens_per_s", "tokens_per_s_per_device", "tflops_per_device", "hardware_tflops_per_device", "mfu", "hfu"),
    *("mfu_full", "mfu_causal"),
}
FLUSH_S = 10  # longest time until a point is in the file


def open_tracker(start: TrackerStart) -> TensorBoard:
    """Return the writer of a run's event files."""
    track, run_dir = start.run.track, start.run_dir
    folder = Path(track.tensorboard_dir) if track.tensorboard_dir else run_dir / "tensorboard"
    points = {"iteration": start.iteration, "samples": start.samples, "world_size": start.world_size}
    return TensorBoard(track, folder, start.run.name or run_dir.name, run_dir=run_dir, **points)


class TensorBoard(Tracker):
    """Writes points to event files in a folder.

    On resume the points after the checkpoint are cut off the files that this run wrote
    before, so that every step has one point. (A restart mark would not do: it drops by the
    step, and of ``vs samples`` that is a number of samples.)

    Args:
        settings: what is written.
        folder: of the event files.
        run_name: part of their names.
        run_dir: the run folder; only its own files are cut, others may share the folder of event files.
        iteration, samples, world_size: as :class:`TrackerStart`.
    """

    name = "TensorBoard"

    def __init__(
        self,
        settings: TrackConfig,
        folder: Path,
        run_name: str,
        *,
        run_dir: Path,
        iteration: int,
        samples: int,
        world_size: int,
    ):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.settings, self.every, self.world_size = settings, settings.tensorboard_log_interval, world_size
        self.samples = samples
        self.event, self.summary = event_pb2.Event, summary_pb2.Summary
        # Runs may have one name, which is often the preset's; a folder is one run's.
        own = hashlib.blake2b(os.path.abspath(run_dir).encode(), digest_size=4).hexdigest()
        suffix = f".{re.sub(r'[^0-9A-Za-z_-]', '_', run_name)}-{own}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"events.out.tfevents.*{suffix}")):
            cut_back(path, iteration, samples)
        self.writer = EventFileWriter(str(folder), settings.tensorboard_queue_size, FLUSH_S, filename_suffix=suffix)
        self.dropped = {tag for tag, name in SWITCHES.items() if not getattr(settings, name)}

    def write(self, row: Mapping[str, Any]) -> None:
        """Queue the points of a row; a thread writes them."""
        self.samples = row.get("consumed_samples", self.samples)
        over_iterations = dict(self.points(row))
        over_samples = {
            f"{tag}{VS_SAMPLES}": value for tag, value in over_iterations.items() if not tag.startswith(ON_ITERATIONS)
        }
        for step, points in ((row["iteration"], over_iterations), (self.samples, over_samples)):
            finite = [(tag, value) for tag, value in points.items() if value is not None and math.isfinite(value)]
            values = [self.summary.Value(tag=tag, simple_value=value) for tag, value in finite]
            if values:
                summary = self.summary(value=values)
                self.writer.add_event(self.event(wall_time=time.time(), step=step, summary=summary))
        if "save_s" in row:
            # What a checkpoint has behind it must outlive a rank that is killed.
            self.writer.flush()

    def points(self, row: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
        """Yield tags and values of a row."""
        for key, value in row.items():
            tag = STEP_TAGS.get(key, "")
            if tag and tag not in self.dropped:
                yield tag, value
            elif key in THROUGHPUT:
                yield f"throughput/{key}", value
            elif key.startswith("time/") and self.settings.log_timers:
                yield f"{key.removeprefix('time/').removesuffix('_s')}-time", value
            elif key in ENERGY or key.startswith("task/"):
                yield key, value
            elif key.startswith(("valid_loss", "test_loss")):
                yield from self._held_out(key, value)
        if "lm_loss" in row and self.settings.log_world_size:
            yield "world-size", self.world_size

    def _held_out(self, key: str, loss: float | None) -> Iterator[tuple[str, float | None]]:
        split, _, corpus = key.partition("/")
        tag = f"lm loss {'validation' if split == 'valid_loss' else 'test'}"
        behind = f"/{corpus}" if corpus else ""
        yield f"{tag}{behind}", loss
        if self.settings.log_validation_ppl and loss is not None and loss < 700:
            yield f"{tag} ppl{behind}", math.exp(loss)

    def close(self) -> None:
        """Write what is queued and close the file."""
        self.writer.close()


def cut_back(path: Path, iteration: int, samples: int) -> None:
    """Cut off an event file what comes after ``iteration`` or ``samples``; remove it when nothing is left.

    Points are in the order of the steps. With ``iteration`` 0 the run starts over.
    """
    from tensorboard.compat.proto import event_pb2

    keep = points = 0
    if path.stat().st_size:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for start, end in _records(content):
                event = event_pb2.Event.FromString(content[start : end - 4])
                if event.summary.value:
                    is_samples = event.summary.value[0].tag.endswith(VS_SAMPLES)
                    if not iteration or event.step > (samples if is_samples else iteration):
                        break
                    points += 1
                keep = end
    if not points:
        path.unlink()
    elif keep < path.stat().st_size:
        os.truncate(path, keep)


def _records(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where the data of each whole record begins, and where the record ends.

    A record of TFRecord is the length as uint64, its checksum as uint32, the data, their checksum as uint32.
    """
    begin = 0
    while begin + 16 <= len(content):
        start = begin + 12
        end = start + struct.unpack_from("<Q", content, begin)[0] + 4
        if end > len(content):
            return  # cut off by a kill
        yield start, end
        begin = end
