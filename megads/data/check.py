"""Look at the data before any rank is started; cheap, and without torch."""

from __future__ import annotations

import os

import numpy as np

from megads.cluster.machine import available_memory
from megads.config.schema import RunConfig
from megads.data import demo
from megads.data.build import allow_open_files, read_shards, samples_of, split_files
from megads.data.file_list import Shard
from megads.data.indexed.mmap import IndexedDataset
from megads.errors import ConfigError, DataError

_LOOKED_AT = 4096  # tokens of a document
_INDEX_BYTES = 16  # of a sample in GPTSamples and Mix, at least: where it starts, and two shuffles


def check_data(run: RunConfig, vocab_size: int) -> None:
    """Check that the run's data is there, is whole and fits its model.

    Reads headers and sizes of every file, and the beginnings of a few documents. A demo
    corpus that is not made yet is taken to be fine.

    Args:
        run: with derived values.
        vocab_size: of the tokenizer.

    Raises:
        ConfigError: the tokenizer has more tokens than the model.
        DataError: there are too many samples to order, the list or a file is missing or broken,
            holds ids that the model does not know, or a split that is asked for has no documents
            or less than one sample.
    """
    known = run.model.vocab_size or vocab_size
    if vocab_size > known:
        raise ConfigError(
            f"the tokenizer has {vocab_size} tokens, but VOCAB_SIZE={known}; "
            f"set VOCAB_SIZE to {vocab_size} or larger, or leave it unset"
        )
    _check_index(run)
    shards = _shards(run)
    if not shards:
        return
    allow_open_files(2 * len(shards))
    datasets = [IndexedDataset(shard.prefix) for shard in shards]
    for dataset in datasets:
        _check_ids(dataset, known)
    split_files(run, shards, datasets)


def _check_index(run: RunConfig) -> None:
    """Refuse a row of samples whose order alone would fill the memory of this host."""
    names = {"train": "TRAIN_ITERS", "valid": "EVAL_ITERS", "test": "EVAL_ITERS"}
    available = available_memory()
    for split, samples in samples_of(run).items():
        if samples * _INDEX_BYTES > available and not run.train.force:
            raise DataError(
                f"{split}: the order of {samples} samples takes {samples * _INDEX_BYTES / 2**30:.3g} GiB on every "
                f"rank, and this host has {available / 2**30:.3g} GiB; lower {names[split]} or GLOBAL_BATCH"
            )


def _shards(run: RunConfig) -> list[Shard]:
    if not run.data.file_list and not os.path.exists(demo.demo_prefix(run).parent):
        return []
    return [shard for shard in read_shards(run) if shard.weight > 0]


def _check_ids(dataset: IndexedDataset, known: int) -> None:
    """Refuse a file of another vocabulary; wrong ids deeper in a file are found when they are read."""
    for number in sorted({0, len(dataset) // 2, len(dataset) - 1}):
        tokens = dataset.get(number, 0, min(int(dataset.lengths[number]), _LOOKED_AT)).astype(np.int64)
        wrong = tokens[(tokens < 0) | (tokens >= known)]
        if len(wrong):
            raise DataError(
                f"{dataset.prefix}: holds token {wrong.max()} but the model knows {known}; "
                "use the tokenizer the file was made with, and its VOCAB_SIZE"
            )
