"""Look at the data before any rank is started; cheap, and without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from megads.config.schema import RunConfig
from megads.data.datasets import Files, Plans, make_plans, read_shards, samples_of, uses_demo
from megads.data.formats.record import read_record
from megads.data.formats.token_file import TokenFile
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.retro.queried import is_retro, open_neighbors
from megads.data.sources import demo
from megads.data.sources.file_list import Shard
from megads.data.stages.shards import stages_with_files
from megads.data.token_files.scan import index_problems
from megads.data.tokenizers.record_check import check_record
from megads.data.tokenizers.word_pieces import load_word_pieces
from megads.errors import ConfigError, DataError

_LOOKED_AT = 4096  # tokens of a document
_INDEX_BUDGET = 1 << 28  # bytes of indices that a launch reads, of all files together
_INDEX_BYTES = 16  # of a sample: where it starts, and two shuffles


def check_data(run: RunConfig, vocab_size: int) -> None:
    """Check that the run's data is there, is valid and fits its model and tokenizer, and that its indices find room.

    Reads headers and sizes of every file, its index or stretches of a large one, and the
    beginnings of a few documents. A demo corpus that is not made yet is taken to be fine. The files of a task
    have been read already (``megads.data.tasks``).

    Raises:
        ConfigError: the tokenizer has more tokens than the model.
        DataError: a list or a file is missing or broken, was made with another tokenizer, holds sentences or ids
            that the model does not know, a split that is asked for has no documents or less than one sample, or
            the cache folder has no room for the sample indices.
    """
    known = run.model.vocab_size or vocab_size
    if vocab_size > known:
        raise ConfigError(
            f"the tokenizer has {vocab_size} tokens, but VOCAB_SIZE={known}; "
            f"set VOCAB_SIZE to {vocab_size} or larger, or leave it unset"
        )
    if run.finetune.task:
        return
    for stage, alone, listed in stages_with_files(run):
        try:
            _check_files(alone, known, [shard for shard in listed if shard.weight > 0] or _shards(run))
        except DataError as error:
            raise DataError(f"stage {stage.name}: {error}") from None
    if not run.data.stage_table:
        _check_files(run, known, _shards(run))


def _check_files(run: RunConfig, known: int, shards: Sequence[Shard]) -> None:
    if not shards:
        for split, samples in samples_of(run).items():
            _check_size(run, split, samples * _INDEX_BYTES, Cache.of(run))
        return
    files = Files()
    plans = make_plans(run, shards, files)
    prefixes = list(dict.fromkeys(recipe.prefix for plan in plans.values() if plan for recipe in plan.files()))
    check_record(run, prefixes)
    if load_word_pieces(run) is None:
        _check_level(run, prefixes)
    for prefix in prefixes:
        for problem in index_problems(files.open(prefix), _INDEX_BUDGET // len(prefixes)):
            raise DataError(f"{problem}; restore a copy, or write the files again")
        _check_ids(files.open(prefix), known)
    if is_retro(run):
        open_neighbors(run, [split for split, plan in plans.items() if plan])
    check_room(run, plans, Cache.of(run))


def _check_level(run: RunConfig, prefixes: Sequence[str]) -> None:
    """Refuse files of sentences: GPT samples are made of sequences, so sentences would be shuffled apart."""
    if run.train.force:
        return
    for prefix in prefixes:
        record = read_record(prefix)
        if record.level == "sentence" if record else prefix.endswith("_sentence"):
            raise DataError(
                f"{prefix}: holds sentences (--split-sentences), which are made for BERT; a {run.model.family} model "
                "would get the sentences of a document as separate samples: preprocess without it, or set FORCE=1"
            )


def check_room(run: RunConfig, plans: Plans, cache: Cache) -> None:
    """Refuse indices that do not fit on the disk of the cache, and a cache that cannot be written.

    Raises:
        DataError: as said.
    """
    folder, free = _disk(cache)
    writable = os.access(folder, os.W_OK | os.X_OK)
    for split, plan in plans.items():
        recipes = list(plan.recipes()) if plan else []
        if sum(recipe.nbytes for recipe in recipes) < free and writable:
            continue
        missing = [recipe for recipe in recipes if cache.find(recipe) is None]
        _check_size(run, split, sum(recipe.nbytes for recipe in missing), cache)
        if missing and not writable:
            raise DataError(
                f"sample indices: {folder} cannot be written; set DATA_CACHE_PATH to a folder that can be written"
            )


def _check_size(run: RunConfig, split: str, needed: int, cache: Cache) -> None:
    free = _disk(cache)[1]
    if needed < free or run.train.force:
        return
    name = "TRAIN_ITERS" if split == "train" else "EVAL_ITERS"
    raise DataError(
        f"{split}: the order of {samples_of(run)[split]} samples takes {needed / 2**30:.3g} GiB in {cache.folder}, "
        f"which has {free / 2**30:.3g} GiB free; lower {name} or GLOBAL_BATCH, or set DATA_CACHE_PATH to a larger disk"
    )


def _disk(cache: Cache) -> tuple[Path, int]:
    """Return the nearest folder of the cache that is there, and its free bytes."""
    folder = next(each for each in (cache.folder, *cache.folder.parents) if os.path.isdir(each))
    usage = shutil.disk_usage(folder)
    if not usage.total:
        raise DataError(f"sample indices: {folder} is on a temporary file system; set DATA_CACHE_PATH to a disk")
    return folder, usage.free


def _shards(run: RunConfig) -> list[Shard]:
    if uses_demo(run) and not os.path.exists(demo.demo_prefix(run).parent):
        return []
    return [shard for shard in read_shards(run) if shard.weight > 0]


def _check_ids(dataset: TokenFile, known: int) -> None:
    """Refuse a file of another vocabulary; wrong ids deeper in a file are found when they are read."""
    for number in sorted({0, len(dataset) // 2, len(dataset) - 1}):
        tokens = dataset.get(number, 0, min(dataset.length_row[number], _LOOKED_AT)).astype(np.int64)
        wrong = tokens[(tokens < 0) | (tokens >= known)]
        if len(wrong):
            raise DataError(
                f"{dataset.prefix}: holds token {wrong.max()} but the model knows {known}; "
                "use the tokenizer the file was made with, and its VOCAB_SIZE"
            )
