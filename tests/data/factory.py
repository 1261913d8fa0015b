"""Tiny token files for tests of anything that reads data."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from megads.config.schema import RunConfig
from megads.data.formats.dtypes import best_dtype
from megads.data.formats.files import Row
from megads.data.formats.writer import IndexedWriter


def write_dataset(
    folder: Path, lengths: Sequence[int], vocab: int = 100, seed: int | None = 0, name: str = "data", start: int = 0
) -> str:
    """Write documents of ``lengths`` tokens as ``<folder>/<name>.bin`` and ``.idx``; return the prefix.

    Tokens are random ids below ``vocab``; with ``seed=None`` they count up from ``start``.
    """
    total = sum(lengths)
    counting = np.arange(start, start + total)
    tokens = counting if seed is None else np.random.RandomState(seed).randint(0, vocab, total)
    prefix = str(folder / name)
    with IndexedWriter(prefix, best_dtype(vocab)) as writer:
        for part in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.add_document(part)
        writer.finalize()
    return prefix


def numbers(row: Row) -> list[int]:
    """Return all numbers of a row."""
    return row.read(0, len(row)).tolist()


def write_list(path: Path, *lines: str) -> Path:
    """Write a data list and return its path."""
    path.write_text("".join(line + "\n" for line in lines))
    return path


def make_run(**sections: dict[str, object]) -> RunConfig:
    """Return a run of 4 steps of 4 samples of 8 tokens, vocabulary 100, with some sections changed."""
    model = {"seq_length": 8, "vocab_size": 100, **sections.get("model", {})}
    train = {"train_iters": 4, "global_batch": 4, "eval_iters": 1, "eval_interval": 2, **sections.get("train", {})}
    data = {"tokenizer_type": "NullTokenizer", "train_split": 8, "val_split": 2, "cache_dir": _cache()}
    data = {**data, **sections.get("data", {})}
    return RunConfig.model_validate({"model": model, "train": train, "data": data})


@functools.cache
def _cache() -> str:
    """Return a folder for sample indices that goes with the process."""
    folder = tempfile.mkdtemp(prefix="megads-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
