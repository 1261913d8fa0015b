"""The arrays of an index, made in memory or read whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megads.data.samples.blend import BlendRecipe, normalised
from megads.data.samples.recipe import Columns, Recipe


@dataclass(frozen=True)
class Held:
    """A column in memory."""

    array: np.ndarray  # of one dimension

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> int:
        return int(self.array[i])

    def read(self, begin: int, end: int) -> np.ndarray:
        return self.array[begin:end]


def collect(recipe: Recipe) -> dict[str, np.ndarray]:
    """Return the arrays of ``recipe``."""
    making = recipe.make()
    content = b"".join(np.ascontiguousarray(block).tobytes() for block in making.blocks)
    arrays, start = {}, 0
    for spec in making.specs:
        arrays[spec.name] = np.frombuffer(content, spec.dtype, math.prod(spec.shape), start).reshape(spec.shape)
        start += spec.nbytes
    return arrays


def hold(recipe: Recipe) -> Any:
    """Return the columns of ``recipe``."""
    return {name: Held(array.reshape(-1)) for name, array in collect(recipe).items()}


def read_all(columns: Columns) -> dict[str, np.ndarray]:
    """Return whole columns, each of one dimension."""
    return {name: column.read(0, len(column)) for name, column in columns.items()}


def blend_index(weights: Sequence[float], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the dataset of each of ``size`` samples of a blend, and the sample's number there."""
    arrays = collect(BlendRecipe(tuple(normalised(weights)), size))
    return arrays["dataset"], arrays["sample"].astype(np.int64)
