"""From the run's settings and data files to its train, valid and test samples."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megads.config.schema import RunConfig
from megads.data import demo
from megads.data.file_list import Shard, read_file_list
from megads.data.indexed.mmap import IndexedDataset
from megads.data.samples.blend import split_documents
from megads.data.samples.gpt import GPTSamples
from megads.data.samples.mix import Mix, requested_samples
from megads.errors import DataError

SPLITS = ("train", "valid", "test")
_FILES_BESIDE_DATA = 256  # sockets, logs, libraries
_ENOUGH_DOCUMENTS = 100_000  # more are not added up to see whether a split holds one sample


class Dataset(Protocol):
    """A row of samples, each int64 [seq_length + 1]."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``."""


def samples_of(run: RunConfig) -> dict[str, int]:
    """Return how many samples each split needs; 0 where nothing is asked for.

    Every validation reads the same ``eval_iters`` global batches, so its losses compare.
    Validation is not asked for with ``VAL_SPLIT=0`` or ``EVAL_INTERVAL=0``, the final test not with
    ``TEST_SPLIT=0``.
    """
    evaluation = run.train.eval_iters * run.train.global_batch
    return {
        "train": run.train.train_iters * run.train.global_batch,
        "valid": evaluation if run.train.eval_interval > 0 and run.data.val_split > 0 else 0,
        "test": evaluation if run.data.test_split > 0 else 0,
    }


def read_shards(run: RunConfig) -> list[Shard]:
    """Return the run's data files: those of its list, else the demo corpus, which must have been made."""
    return read_file_list(Path(run.data.file_list)) if run.data.file_list else demo.read_demo(run)


def build_splits(run: RunConfig, shards: list[Shard]) -> dict[str, Dataset | None]:
    """Return the samples of train, valid and test; None where nothing is asked for.

    A pure function of the files and the settings: every rank builds the same.

    Raises:
        DataError: a file is broken, or a split gets no documents or less than one sample.
    """
    shards = [shard for shard in shards if shard.weight > 0]
    allow_open_files(2 * len(shards))
    datasets = [IndexedDataset(shard.prefix) for shard in shards]
    ranges = split_files(run, shards, datasets)
    return {split: _build(run, split, shards, datasets, ranges.get(split)) for split in SPLITS}


def split_files(run: RunConfig, shards: Sequence[Shard], datasets: Sequence[IndexedDataset]) -> dict[str, list[range]]:
    """Return, for each split that is asked for, the documents of each file; an empty range leaves a file out.

    Every file must have documents to train on. A file too small to spare any for validation
    or test is left out there, as long as another one has some.

    Raises:
        DataError: a split has no documents, or less than one sample.
    """
    shares = (run.data.train_split, run.data.val_split, run.data.test_split)
    cut = [split_documents(shares, len(dataset)) for dataset in datasets]
    found = {}
    for number, (split, samples) in enumerate(samples_of(run).items()):
        if samples:
            found[split] = [ranges[number] for ranges in cut]
            _check_split(run, split, samples, shards, datasets, found[split])
    return found


def allow_open_files(count: int) -> None:
    """Let this process keep ``count`` more files open, as far as its hard limit allows.

    A mapped file keeps a descriptor; lists of 2400 pairs exist, and the usual soft limit is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _FILES_BESIDE_DATA
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise DataError(
            f"the data list needs {wanted} open files, the limit is {hard}; raise `ulimit -Hn` or use a shorter list"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_split(
    run: RunConfig,
    split: str,
    samples: int,
    shards: Sequence[Shard],
    datasets: Sequence[IndexedDataset],
    ranges: Sequence[range],
) -> None:
    split_of = f"split {run.data.train_split:g},{run.data.val_split:g},{run.data.test_split:g} (train,valid,test)"
    name = {"train": "TRAIN_SPLIT", "valid": "VAL_SPLIT", "test": "TEST_SPLIT"}[split]
    cure = {"train": "", "valid": ", or EVAL_INTERVAL=0 for no validation", "test": ", or 0 for no test"}[split]
    empty = [shard.prefix for shard, documents in zip(shards, ranges, strict=True) if not documents]
    if empty and (split == "train" or len(empty) == len(shards)):
        total = sum(len(dataset) for dataset in datasets)
        where = f"{empty[0]} ({len(IndexedDataset(empty[0]))} documents)" if split == "train" else f"{total} documents"
        raise DataError(
            f"{split}: {samples} samples are asked for, but the {split_of} leaves no document of {where}; "
            f"raise {name}{cure}, or use files with more documents"
        )
    tokens = sum(
        int(dataset.lengths[documents.start : documents.stop][:_ENOUGH_DOCUMENTS].sum(dtype=np.int64))
        for dataset, documents in zip(datasets, ranges, strict=True)
    )
    if tokens < run.model.seq_length + 1:
        raise DataError(
            f"{split}: {tokens} tokens are less than one sample of SEQ + 1 = {run.model.seq_length + 1}; "
            f"raise {name}{cure}, lower SEQ, or use more data"
        )


def _build(
    run: RunConfig,
    split: str,
    shards: Sequence[Shard],
    datasets: Sequence[IndexedDataset],
    ranges: Sequence[range] | None,
) -> Mix | None:
    if ranges is None:
        return None
    size = samples_of(run)[split]
    used = [i for i, documents in enumerate(ranges) if documents]
    requests = requested_samples([shards[i].weight for i in used], size)
    files = [
        GPTSamples(datasets[i], ranges[i], run.model.seq_length, count, run.train.seed)
        for i, count in zip(used, requests, strict=True)
    ]
    return Mix([shards[i] for i in used], files, size, run.train.seed, vocab_size=run.model.vocab_size)
