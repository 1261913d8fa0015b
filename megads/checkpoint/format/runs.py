"""From the pieces that files hold to the runs of which a manifest tells. No torch.

Where ranks share every parameter evenly, as under ZeRO 3, there are as many pieces as ranks
times parameters. In the manifest they are one run of each parameter, so that its length does
not depend on the ranks, and nothing ever holds all pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.manifest import File, Manifest, Run, file_name, in_order

Table = NDArray[np.int64]
"""``[pieces, 3]``: number of the parameter, first number of the flattened slice, count."""


@dataclass(frozen=True)
class FileFacts:
    """A file, as the one who wrote it knows it."""

    bytes: int
    crc32: int  # of the header
    tensor: int  # tensor-parallel rank of the slices that its pieces are of
    pieces: tuple[tuple[str, int, int], ...]  # name, first number of the flattened slice, count


def tell_of(manifest: Manifest, files: Mapping[int, FileFacts]) -> Manifest:
    """Return ``manifest``, listing ``files``, by rank.

    Raises:
        KeyError: a piece is of a parameter that the manifest has not.
    """
    collector = Collector(manifest.tensors)
    for rank, facts in sorted(files.items()):
        file = File(facts.bytes, facts.crc32, facts.tensor)
        collector.add(rank, file, table(facts.pieces, manifest.tensors))
    return replace(manifest, files=collector.files, runs=collector.runs())


def table(pieces: Iterable[tuple[str, int, int]], tensors: Iterable[str]) -> Table:
    """Return ``pieces``, each (name, first, count), with the names' places in ``tensors``.

    Raises:
        KeyError: one has another name.
    """
    places = {name: at for at, name in enumerate(tensors)}
    rows = [(places[name], first, count) for name, first, count in pieces]
    return np.array(rows, np.int64).reshape(-1, 3)


def pack(pieces: Table) -> bytes:
    """Return a table in few bytes: layers are alike, and so are the distances between rows."""
    return zlib.compress(np.diff(pieces, axis=0, prepend=0).T.tobytes())


def unpack(packed: bytes) -> Table:
    """Return what :func:`pack` was given."""
    return np.frombuffer(zlib.decompress(packed), np.int64).reshape(3, -1).T.cumsum(axis=0)


_FIRST, _COUNT, _RANK, _STEP, _TIMES = range(5)


class Collector:
    """Makes runs of the pieces of files that come in the order of their ranks.

    Args:
        tensors: names of the parameters.

    Attributes:
        files: those that came, by name.
    """

    def __init__(self, tensors: Iterable[str]):
        self.files: dict[str, File] = {}
        self._found: dict[str, list[Run]] = {name: [] for name in tensors}
        self._names = list(self._found)
        # Of each tensor-parallel rank and parameter the run that the next file may continue with.
        self._last: dict[int, Table] = {}

    def add(self, rank: int, file: File, pieces: Table) -> None:
        """Take a file and what it holds."""
        self.files[file_name(rank)] = file
        last = self._last.setdefault(file.tensor, np.zeros((len(self._names), 5), np.int64))
        at, first, count = pieces.T
        was = last[at]
        times, step = was[:, _TIMES], rank - was[:, _RANK] - was[:, _STEP] * (was[:, _TIMES] - 1)
        goes_on = (first == was[:, _FIRST] + was[:, _COUNT] * times) & (count == was[:, _COUNT]) & (times > 0)
        goes_on &= (times == 1) | (step == was[:, _STEP])
        last[at[goes_on], _STEP] = step[goes_on]
        last[at[goes_on], _TIMES] += 1
        new = at[~goes_on]
        self._end(file.tensor, new)
        last[new] = 0
        last[new, _FIRST], last[new, _COUNT] = first[~goes_on], count[~goes_on]
        last[new, _RANK], last[new, _TIMES] = rank, 1

    def runs(self) -> dict[str, tuple[Run, ...]]:
        """Return every parameter's runs, slice by slice and in order; no file may come after."""
        for tensor in self._last:
            self._end(tensor, np.arange(len(self._names)))
        self._last = {}
        return {name: in_order(runs) for name, runs in self._found.items()}

    def _end(self, tensor: int, which: NDArray[np.int64]) -> None:
        for at, (first, count, rank, step, times) in zip(
            which.tolist(), self._last[tensor][which].tolist(), strict=True
        ):
            if times:
                ranks = range(rank, rank + step * (times - 1) + 1, max(1, step))
                self._found[self._names[at]].append(Run(tensor, first, count, ranks))
