"""Write tensors to safetensors files of bounded size, a band of a tensor at a time. No torch."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.huggingface.dtypes import STORED, TYPES
from megads.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Outgoing:
    """A tensor to be written: its bands come in order, already of the type of the files."""

    name: str
    shape: tuple[int, ...]
    bands: Callable[[], Iterable[NDArray[np.generic]]]


def parse_size(text: str) -> int:
    """Return the bytes of ``5GB``, ``500MiB`` or ``1000000``; CheckpointError for something else or 0."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match and match[2].upper() in _UNITS else 0
    if not size:
        raise CheckpointError(f"--max-shard-size {text}: not a size; use e.g. 5GB, 500MB or 2GiB")
    return size


def write_shards(
    folder: Path, tensors: Sequence[Outgoing], dtype: str, limit: int, progress: Callable[[int, int], None]
) -> list[str]:
    """Write ``tensors`` to files of at most ``limit`` bytes of tensors each, or of one tensor; return their names.

    Several files have an index. ``progress`` is called with the bytes that are written and their total.

    Raises:
        OSError: a file cannot be written.
    """
    size = STORED[TYPES[dtype]].itemsize
    shards = list(_split(tensors, size, limit))
    total = sum(math.prod(tensor.shape) * size for tensor in tensors)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [SINGLE]
    done = 0
    for name, shard in zip(names, shards, strict=True):
        for count in _write(folder / name, shard, TYPES[dtype], size):
            done += count
            progress(done, total)
    if len(shards) > 1:
        where = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        content = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf8")
    return names


def _split(tensors: Sequence[Outgoing], size: int, limit: int) -> Iterator[list[Outgoing]]:
    shard: list[Outgoing] = []
    filled = 0
    for tensor in tensors:
        more = math.prod(tensor.shape) * size
        if shard and filled + more > limit:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += more
    if shard:
        yield shard


def _write(path: Path, tensors: Sequence[Outgoing], kind: str, size: int) -> Iterator[int]:
    """Write one file; yield the bytes of every band."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + math.prod(tensor.shape) * size
        header[tensor.name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for band in tensor.bands():
                file.write(np.ascontiguousarray(band).data)
                yield band.nbytes
        file.flush()
        if file.tell() != 8 + len(text) + at:
            raise AssertionError(f"{path}: {file.tell() - 8 - len(text)} bytes of tensors instead of {at}")
        os.fsync(file.fileno())
