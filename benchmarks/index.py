"""Sample indices of 10 million documents and 100 million samples, against megatron-core's builder.

::

    python -m benchmarks.index            # a few minutes, 4 GB of disk
    python -m benchmarks.index --quick    # a thousandth of it

Both build the same index of the same file, each in a process of its own, in turns; the arrays are
compared. The file has real lengths and a .bin without content (a hole). Reported: seconds of
the build, without the start of the process (median), the largest resident memory of the
builder, and for a rank that finds the index in the cache the seconds until it has its first
sample and the memory it then holds. Then a blend of several corpora, against the compiled
helper of megatron-core alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SEED, SEQ_LENGTH, MEAN_LENGTH = 1234, 512, 1024
CORPORA = 8
BUILDERS = ("megads", "megatron-core")


@dataclass(frozen=True)
class Size:
    """What is measured."""

    documents: int
    samples: int
    runs: int

    @property
    def epochs(self) -> float:
        """How often the documents are read, about."""
        return self.samples * SEQ_LENGTH / (self.documents * MEAN_LENGTH)


FULL, QUICK = Size(10_000_000, 100_000_000, 3), Size(10_000, 100_000, 1)


def write_data(folder: Path, documents: int) -> str:
    """Write an index with random lengths and a .bin file that is one hole; return the prefix."""
    from megads.data.formats.writer import write_index

    lengths = np.random.RandomState(SEED).randint(1, 2 * MEAN_LENGTH, documents).astype(np.int32)
    write_index(folder / "data.idx", "mmap", np.dtype("<u2"), lengths, np.arange(documents + 1, dtype=np.int64))
    with (folder / "data.bin").open("wb") as file:
        file.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return str(folder / "data")


def build_ours(prefix: str, cache: Path, samples: int) -> None:
    """Build the index as a run does."""
    from megads.data.samples.index_cache.cache import Cache

    Cache(cache).get(_recipe(prefix, samples))


def _recipe(prefix: str, samples: int) -> Any:
    from megads.data.formats.token_file import open_dataset
    from megads.data.samples.gpt import GPTRecipe, Stamp

    return GPTRecipe(prefix, Stamp.of(prefix), 0, len(open_dataset(prefix)), SEQ_LENGTH, samples, SEED)


def build_theirs(prefix: str, cache: Path, samples: int) -> None:
    """Build the index with megatron-core's GPTDataset."""
    GPTDataset, config, IndexedDataset, Split = _theirs(cache)
    whole = IndexedDataset(prefix)
    GPTDataset(whole, prefix, np.arange(len(whole), dtype=np.int32), samples, Split.train, config)


def _theirs(cache: Path) -> tuple[Any, Any, Any, Any]:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = 50_000, 49_999, None, {"class": "none"}

    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQ_LENGTH,
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    return GPTDataset, config, IndexedDataset, Split


@dataclass(frozen=True)
class Measured:
    """One process: seconds and MB."""

    seconds: float
    peak: float = 0.0
    held: float = 0.0


def child(what: str, prefix: str, cache: str, samples: int) -> Measured:
    """Do one thing and measure it; the process has done nothing else."""
    if what == "start":
        return _start(prefix, Path(cache), samples)
    if what == "megads":
        import megads.data.samples.gpt
        import megads.data.samples.index_cache.cache  # noqa: F401

        build = build_ours
    else:
        warnings.simplefilter("ignore")
        _theirs(Path(cache))
        build = build_theirs
    before = _resident()
    started = time.perf_counter()
    build(prefix, Path(cache), samples)
    return Measured(time.perf_counter() - started, _peak() - before)


def _start(prefix: str, cache: Path, samples: int) -> Measured:
    """Start as a rank does: from settings to its first sample, all imports included."""
    started = time.perf_counter()
    from megads.config.schema import RunConfig
    from megads.data.datasets import build_splits
    from megads.data.sources.file_list import Shard

    train = {"train_iters": samples // 100, "global_batch": 100, "eval_iters": 0, "seed": SEED}
    data = {"train_split": 1, "val_split": 0, "path": prefix, "cache_dir": str(cache.parent)}
    run = RunConfig.model_validate({"model": {"seq_length": SEQ_LENGTH}, "train": train, "data": data})
    splits = build_splits(run, [Shard(1.0, prefix, "data")])
    dataset = splits["train"]
    assert dataset is not None
    for i in range(0, len(dataset), max(1, len(dataset) // 64)):
        assert dataset[i].shape == (SEQ_LENGTH + 1,)
    return Measured(time.perf_counter() - started, _peak(), _resident())


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(what: str, prefix: str, cache: Path, samples: int) -> Measured:
    """Run :func:`child` in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.index", "--child", what, prefix, str(cache), str(samples)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def same_arrays(prefix: str, ours: Path, theirs: Path, samples: int) -> bool:
    """Return whether both caches hold the same three arrays."""
    from megads.data.samples.index_cache.cache import Cache

    arrays = Cache(ours).find(_recipe(prefix, samples))
    return arrays is not None and all(
        np.array_equal(column.read(0, len(column)), np.load(next(theirs.glob(f"*-{name}.npy")), mmap_mode="r").ravel())
        for name, column in arrays.items()
    )


def measure_blend(samples: int) -> tuple[float, float, bool]:
    """Return the seconds of a blend of several corpora, ours and megatron-core's helper, and whether both are equal."""
    from megads.data.samples.blend import BlendRecipe

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers
    weights = np.random.RandomState(SEED).rand(CORPORA)
    weights /= weights.sum()
    started = time.perf_counter()
    *blocks, ours = BlendRecipe(tuple(weights.tolist()), samples).make().blocks
    middle = time.perf_counter()
    datasets, numbers = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    helpers.build_blending_indices(datasets, numbers, weights, CORPORA, samples, False)
    ended = time.perf_counter()
    equal = np.array_equal(ours, datasets) and np.array_equal(np.concatenate(blocks), numbers)
    return middle - started, ended - middle, bool(equal)


def run(size: Size, folder: Path) -> dict[str, float]:
    """Measure everything, print it, and return the figures by name."""
    prefix = write_data(folder, size.documents)
    found: dict[str, list[Measured]] = {name: [] for name in BUILDERS}
    caches = {name: folder / name / "index" for name in BUILDERS}
    for turn in range(size.runs):
        for name in BUILDERS:
            for path in caches[name].glob("*"):
                path.unlink()
            found[name].append(measure(name, prefix, caches[name], size.samples))
            print(f"  {turn + 1}/{size.runs} {name:14} {found[name][-1].seconds:7.2f} s", flush=True)
    equal = same_arrays(prefix, *caches.values(), size.samples)
    starts = [measure("start", prefix, caches["megads"], size.samples) for _ in range(size.runs)]
    figures = {f"{name} build s": statistics.median(each.seconds for each in rows) for name, rows in found.items()}
    figures |= {f"{name} peak MB": statistics.median(each.peak for each in rows) for name, rows in found.items()}
    figures["build ratio"] = figures["megads build s"] / figures["megatron-core build s"]
    figures["start s"] = statistics.median(each.seconds for each in starts)
    figures["rank holds MB"] = statistics.median(each.held for each in starts)
    blend, their_blend, blends_equal = measure_blend(size.samples)
    figures |= {"blend s": blend, "helper blend s": their_blend}
    figures["equal"] = float(equal and blends_equal)
    print(f"{size.documents} documents, {size.samples} samples of {SEQ_LENGTH}, {size.epochs:.1f} epochs")
    for name, figure in figures.items():
        print(f"{name:24} {figure:10.3f}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a thousandth of it")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, prefix, cache, samples = args.child
        print(json.dumps(asdict(child(what, prefix, cache, int(samples)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = run(QUICK if args.quick else FULL, Path(folder))
    sys.exit(0 if figures["equal"] else 1)


if __name__ == "__main__":
    main()
