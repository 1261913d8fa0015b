"""What it takes to make the arrays of an index: known before they are made, small, and picklable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
"""The arrays of an index by name."""


class Column(Protocol):
    """An array of an index, end to end, of which a few numbers are looked up at a time."""

    def __len__(self) -> int:
        """Return how many numbers there are."""

    def __getitem__(self, i: int) -> int:
        """Return number ``i``."""

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the numbers ``begin`` up to ``end``."""


Columns = Mapping[str, Column]
"""The arrays of an index by name, to be read in pieces."""


@dataclass(frozen=True)
class Held:
    """A column in memory."""

    array: npt.NDArray[Any]  # of one dimension

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> int:
        return int(self.array[i])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the numbers ``begin`` up to ``end``."""
        return self.array[begin:end]


@dataclass(frozen=True)
class Spec:
    """One array of an index."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Making:
    """An index on its way: its arrays, and their content, one after the other, an array in one or several blocks."""

    specs: tuple[Spec, ...]
    blocks: Iterator[npt.NDArray[Any]]


class Recipe(Protocol):
    """Makes the arrays of one index; equal descriptions make equal arrays."""

    @property
    def kind(self) -> str:
        """What the index is for; part of its file's name."""

    @property
    def cost(self) -> int:
        """Rough work, in samples; to share recipes out evenly."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, nearly."""

    def description(self) -> dict[str, Any]:
        """Return everything that decides the arrays, as JSON has it."""

    def make(self) -> Making:
        """Begin to make the arrays."""


def collect(recipe: Recipe) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of ``recipe``, made in memory."""
    making = recipe.make()
    content = b"".join(np.ascontiguousarray(block).tobytes() for block in making.blocks)
    arrays, start = {}, 0
    for spec in making.specs:
        arrays[spec.name] = np.frombuffer(content, spec.dtype, math.prod(spec.shape), start).reshape(spec.shape)
        start += spec.nbytes
    return arrays


def hold(recipe: Recipe) -> Columns:
    """Return the columns of ``recipe``, made in memory."""
    return {name: Held(array.reshape(-1)) for name, array in collect(recipe).items()}
