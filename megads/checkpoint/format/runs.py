"""From the contents of files to the runs that a manifest lists. No torch.

Where ranks share every parameter evenly, as under ZeRO 3, there are as many shards as ranks
times parameters. In the manifest they are one run of each parameter, so that its length does
not depend on the ranks, and nothing ever holds all shards.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.manifest import File, Manifest, Run, file_name, in_order

Table = NDArray[np.int64]
"""``[shards, 3]`` of a file: index of the parameter, first element of the flattened slice, count."""


Contents = Sequence[tuple[str, int, int]]
"""Of a file, see :meth:`megads.checkpoint.format.manifest.Manifest.contents`."""


def with_files(manifest: Manifest, files: Mapping[int, tuple[File, Contents]]) -> Manifest:
    """Return ``manifest`` of the ``files`` of ranks; KeyError when one holds a parameter that it does not list."""
    collector = Collector(manifest.tensors)
    for rank, (file, contents) in sorted(files.items()):
        collector.add(rank, file, table(contents, manifest.tensors))
    return replace(manifest, files=collector.files, runs=collector.runs())


def table(contents: Iterable[tuple[str, int, int]], tensors: Iterable[str]) -> Table:
    """Return ``contents`` with the names' places in ``tensors``; KeyError for another name."""
    places = {name: at for at, name in enumerate(tensors)}
    rows = [(places[name], first, count) for name, first, count in contents]
    return np.array(rows, np.int64).reshape(-1, 3)


def pack(shards: Table) -> bytes:
    """Return a table in few bytes: layers are alike, and so are the distances between rows."""
    return zlib.compress(np.diff(shards, axis=0, prepend=0).T.tobytes())


def unpack(packed: bytes) -> Table:
    """Return what :func:`pack` was given."""
    return np.frombuffer(zlib.decompress(packed), np.int64).reshape(3, -1).T.cumsum(axis=0)


_FIRST, _COUNT, _RANK, _STEP, _TIMES = range(5)


class Collector:
    """Makes runs of the shards of files that come in the order of their ranks; ``tensors`` names the parameters."""

    def __init__(self, tensors: Iterable[str]):
        self.files: dict[str, File] = {}
        self._found: dict[str, list[Run]] = {name: [] for name in tensors}
        self._names = list(self._found)
        # Of each tensor-parallel rank and parameter the run that the next file may continue with.
        self._last: dict[int, Table] = {}

    def add(self, rank: int, file: File, shards: Table) -> None:
        """Take the next file."""
        self.files[file_name(rank)] = file
        last = self._last.setdefault(file.tensor, np.zeros((len(self._names), 5), np.int64))
        at, first, count = shards.T
        was = last[at]
        times, step = was[:, _TIMES], rank - was[:, _RANK] - was[:, _STEP] * (was[:, _TIMES] - 1)
        continues = (first == was[:, _FIRST] + was[:, _COUNT] * times) & (count == was[:, _COUNT]) & (times > 0)
        continues &= (times == 1) | (step == was[:, _STEP])
        last[at[continues], _STEP] = step[continues]
        last[at[continues], _TIMES] += 1
        new = at[~continues]
        self._end(file.tensor, new)
        last[new] = 0
        last[new, _FIRST], last[new, _COUNT] = first[~continues], count[~continues]
        last[new, _RANK], last[new, _TIMES] = rank, 1

    def runs(self) -> dict[str, tuple[Run, ...]]:
        """Return every parameter's runs, slice by slice and in order; no file may come after."""
        for tensor in self._last:
            self._end(tensor, np.arange(len(self._names)))
        self._last = {}
        return {name: in_order(runs) for name, runs in self._found.items()}

    def _end(self, tensor: int, which: NDArray[np.int64]) -> None:
        rows = self._last[tensor][which].tolist()
        for at, (first, count, rank, step, times) in zip(which.tolist(), rows, strict=True):
            if times:
                ranks = range(rank, rank + step * (times - 1) + 1, max(1, step))
                self._found[self._names[at]].append(Run(tensor, first, count, ranks))
