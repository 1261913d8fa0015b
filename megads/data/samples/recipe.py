"""What it takes to make the arrays of an index: known before they are made, small, and picklable."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from megads.data.formats.files import Row

Columns = Mapping[str, Row]
"""The arrays of an index by name, end to end, of which a few numbers are looked up at a time."""


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
class ArrayStream:
    """The arrays of an index, and their content, one after the other, an array in one or several blocks."""

    specs: tuple[Spec, ...]
    blocks: Iterator[npt.NDArray[Any]]


class Recipe(ABC):
    """Makes the arrays of one index; equal descriptions make equal arrays.

    Attributes:
        kind: what the index is for; part of its file's name.
    """

    kind: ClassVar[str]

    @property
    def cost(self) -> int:
        """Rough work, in samples; to share recipes out evenly."""
        return self.nbytes

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the arrays, nearly."""

    @abstractmethod
    def make(self) -> ArrayStream:
        """Begin to make the arrays.

        Raises:
            DataError: there is nothing to make them of, or a file is broken.
        """

    def description(self) -> dict[str, Any]:
        """Return everything that decides the arrays, as JSON has it: the fields of a dataclass, but for ``nbytes``."""
        return {name: value for name, value in asdict(self).items() if name != "nbytes"}  # type: ignore[call-overload]
