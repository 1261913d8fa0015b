"""A tiny Retro project, written here without the code under test: plain h5py, json and loops."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.data.factory import write_dataset

EOD = 99
LENGTHS = ((9, 4, 1, 13), (6, 8, 2))
"""Tokens of the documents of two files."""


@dataclass(frozen=True)
class Made:
    """What a project holds.

    Attributes:
        documents: ids of the tokens of each document of each file, without EOD.
        chunks: uint32 [chunks, 5] of ``merged/train.hdf5``.
        neighbors: int64 [samples * chunks of a sample, kept] of each split.
    """

    folder: Path
    documents: list[list[list[int]]]
    chunks: np.ndarray
    neighbors: dict[str, np.ndarray]

    def chunk(self, number: int, length: int) -> list[int]:
        """Return the tokens of a chunk, filled up with EOD."""
        file, document, start, stop, _ = self.chunks[number].tolist()
        tokens = self.documents[file][document][start:stop]
        return tokens + [EOD] * (length - len(tokens))


def make_project(
    folder: Path,
    *,
    lengths: Sequence[Sequence[int]] = LENGTHS,
    samples: Mapping[str, int] | None = None,
    seq_length: int = 8,
    chunk_length: int = 4,
    block_size: int = 5,
    kept: int = 3,
    seed: int = 0,
    neighbors: Mapping[str, np.ndarray] | None = None,
    **config: Any,
) -> Made:
    """Write a project: token ids 0..98 at random, EOD 99 behind each document, NullTokenizer, drawn neighbours.

    Args:
        folder: of the project; made.
        lengths: tokens of each document of each file, without EOD.
        samples: of each split that has neighbours; {"train": 4, "valid": 2} unless given.
        seq_length, chunk_length, block_size: as in config.json.
        kept: neighbours of a chunk.
        seed: of what is drawn.
        neighbors: of a split, instead of drawn ones; one in five of these is -1, and so are those behind it.
        config: further keys of config.json, or other values.
    """
    rng = np.random.RandomState(seed)
    samples = {"train": 4, "valid": 2} if samples is None else samples
    (folder / "data").mkdir(parents=True)
    documents: list[list[list[int]]] = []
    for number, sizes in enumerate(lengths):
        prefix = write_dataset(folder / "data", [size + 1 for size in sizes], EOD, seed + number, f"file{number}")
        documents.append(_end_documents(prefix, [size + 1 for size in sizes]))
    chunks = [
        (file, document, start, min(start + chunk_length, len(tokens)), min(chunk_length, len(tokens) - start))
        for file, each in enumerate(documents)
        for document, tokens in enumerate(each)
        for start in range(0, len(tokens), chunk_length)
    ]
    table = np.array(chunks, "uint32")
    (folder / "db" / "merged").mkdir(parents=True)
    with h5py.File(folder / "db" / "merged" / "train.hdf5", "w") as file:
        file["chunks"], file["n_written"] = table, np.array([len(table)], "uint64")
    found = dict(neighbors or {})
    for split, count in samples.items():
        rows = count * (seq_length // chunk_length)
        drawn = rng.randint(0, len(table), (rows, kept))
        drawn[np.cumsum(rng.rand(rows, kept) < 0.2, axis=1) > 0] = -1
        found.setdefault(split, drawn.astype("int64"))
        _write_neighbors(folder / "query" / f"{split}_0123", found[split], block_size)
    content = {
        "retro_gpt_data_path": [word for number in range(len(lengths)) for word in ("1.0", f"file{number}")],
        "retro_gpt_tokenizer_type": "NullTokenizer",
        "retro_gpt_tokenizer_model": None,
        "retro_gpt_vocab_file": None,
        "retro_gpt_merge_file": None,
        "retro_gpt_seq_length": seq_length,
        "retro_gpt_train_samples": samples.get("train", 1),
        "retro_gpt_global_batch_size": 2,
        "retro_gpt_eval_interval": 2,
        "retro_gpt_eval_iters": 1,
        "retro_gpt_split": "100,0,0",
        "retro_gpt_seed": 1234,
        "retro_gpt_chunk_length": chunk_length,
        "retro_gpt_data_cache_path": None,
        "retro_block_size": block_size,
        "retro_bert_tokenizer_type": "BertWordPieceLowerCase",
        "retro_bert_vocab_file": "vocab.txt",
        "retro_neighbor_dirs": {
            split: f"{split}_0123" if split in samples else None for split in ("train", "valid", "test")
        },
        "megads": {"eod": EOD, "vocab_size": EOD + 1},
    }
    (folder / "config.json").write_text(json.dumps(content | config))
    return Made(folder, documents, table, found)


def _end_documents(prefix: str, sizes: Sequence[int]) -> list[list[int]]:
    """Put EOD at the end of each document of a file of bytes; return the documents without it."""
    tokens = np.fromfile(prefix + ".bin", "u1" if Path(prefix + ".bin").stat().st_size == sum(sizes) else "<u2")
    ends = np.cumsum(sizes)
    tokens[ends - 1] = EOD
    tokens.tofile(prefix + ".bin")
    return [tokens[end - size : end - 1].tolist() for end, size in zip(ends, sizes, strict=True)]


def _write_neighbors(folder: Path, rows: np.ndarray, size: int) -> None:
    folder.mkdir(parents=True)
    digits = math.ceil(math.log10(len(rows))) + 1
    for start in range(0, len(rows), size):
        stop = min(start + size, len(rows))
        with h5py.File(folder / f"{start:0{digits}}-{stop:0{digits}}.hdf5", "w") as file:
            file["neighbors"] = rows[start:stop]
