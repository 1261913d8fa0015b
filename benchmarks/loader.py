"""What reading data costs a training step: samples a second of one rank, and the share of a step that waits.

    python benchmarks/loader.py [--mb 400] [--seq 4096] [--latency-ms 2]

One token file of random documents is read in training order with 0, 1, 2 and 4 threads: warm (in
the page cache), cold (its pages are dropped before each round, as far as the file system obeys),
and with a pause before each read of a document, which stands for a network file system whose
every first touch is a round trip. For each, samples a second when nothing else is done, and the
share of the time that a step of --step-ms waits when it needs --batch samples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from megads.config.schema import RunConfig
from megads.data.datasets import build_splits
from megads.data.formats.files import ReadFile
from megads.data.formats.writer import IndexedWriter
from megads.data.loading.batches import Batches, Prefetch, read_ahead
from megads.data.sources.file_list import Shard

WORKERS = (0, 1, 2, 4)
MEAN_DOCUMENT = 700  # tokens


def write_tokens(folder: Path, megabytes: int) -> str:
    rng = np.random.default_rng(0)
    total = megabytes * 2**20 // 2
    with IndexedWriter(folder / "tokens", np.dtype(np.uint16)) as writer:
        while total > 0:
            lengths = rng.geometric(1 / MEAN_DOCUMENT, 10_000).astype(np.int32)
            tokens = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
            writer.add_batch(tokens, lengths, np.ones(len(lengths), np.int32))
            total -= len(tokens)
        writer.finalize()
    return str(folder / "tokens")


def make_run(seq: int, batch: int, samples: int, cache: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"seq_length": seq, "vocab_size": 50_000},
            "train": {"train_iters": samples // batch, "global_batch": batch, "eval_iters": 0},
            "data": {"tokenizer_type": "NullTokenizer", "train_split": 1, "val_split": 0, "cache_dir": cache},
        }
    )


def forget(prefix: str) -> None:
    """Drop the file's pages from the cache."""
    with open(prefix + ".bin", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def slow_down(latency_s: float) -> None:
    """Have every read of tokens begin with a pause, without Python's lock, as one of a network file system does."""
    plain = ReadFile.bytes

    def paused(self: ReadFile, count: int, start: int) -> bytes:
        if self.path.suffix == ".bin":
            time.sleep(latency_s)
        return plain(self, count, start)

    ReadFile.bytes = paused  # type: ignore[method-assign]


def samples_per_s(batches: Prefetch, micro_batch: int, seconds: float) -> float:
    started, read = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        next(batches)
        read += micro_batch
    return read / (time.perf_counter() - started)


def share_waited(batches: Prefetch, per_step: int, step_s: float, steps: int) -> float:
    shares = []
    for _ in range(steps):
        started = time.perf_counter()
        for _ in range(per_step):
            next(batches)
        waited = time.perf_counter() - started
        time.sleep(step_s)
        shares.append(waited / (waited + step_s))
    return statistics.median(shares)


def rounds(prefix: str, train: Any, options: argparse.Namespace) -> Iterator[tuple[str, int, float, float]]:
    for kind in ("warm", "cold", f"{options.latency_ms:g} ms a read"):
        if kind.endswith("read"):
            slow_down(options.latency_ms / 1e3)
        for workers in WORKERS:
            if kind == "cold":
                forget(prefix)
            plain = Batches(train, micro_batch=1, data_rank=0, data_size=1)
            with read_ahead(plain, workers, options.batch, options.seq) as batches:
                speed = samples_per_s(batches, 1, options.seconds)
                if kind == "cold":
                    forget(prefix)
                waited = share_waited(batches, options.batch, options.step_ms / 1e3, options.steps)
            yield kind, workers, speed, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=400, help="of tokens")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step on this rank")
    parser.add_argument("--step-ms", type=float, default=200, help="of a step without its data")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement of speed")
    parser.add_argument("--latency-ms", type=float, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_tokens(Path(folder), options.mb)
        run = make_run(options.seq, options.batch, options.mb * 2**20 // 2 // options.seq * 4, folder)
        train = build_splits(run, [Shard(1.0, prefix, "noise")])["train"]
        print(f"{'':14} {'threads':>7} {'samples/s':>10} {'MB/s':>7}   waiting in steps of {options.step_ms:g} ms")
        for kind, workers, speed, waited in rounds(prefix, train, options):
            print(f"{kind:14} {workers:7} {speed:10.0f} {speed * options.seq * 2 / 1e6:7.1f}   {waited:6.1%}")


if __name__ == "__main__":
    main()
