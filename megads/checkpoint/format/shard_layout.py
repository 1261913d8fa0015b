"""Which elements of a parameter a rank holds, as rectangles of the whole parameter. Arithmetic, no torch.

A parameter is a matrix of ``rows x width`` (a vector has width 1). A tensor-parallel rank
holds a slice of it, and a rank that shares the slice with others, by ZeRO or only for
writing, a run of consecutive numbers of the flattened slice. Such a run is a few
rectangles of the whole parameter, and two layouts meet where their rectangles do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from megads.config.schema import ModelConfig
from megads.families.decoder import spec_of


@dataclass(frozen=True)
class ShardLayout:
    """The slice of a parameter on tensor-parallel rank ``rank`` of ``degree``.

    Attributes:
        shape: of the whole parameter, one or two dimensions.
        dim: which is cut, 0 or 1; None: the slice is the whole parameter.
        parts: full sizes of the matrices fused along ``dim``; of each a rank holds the
            ``rank``-th ``degree``-th, see ``megads.parallel.tensor.Shard``.
        rank: which slice.
        degree: how many there are.
    """

    shape: tuple[int, ...]
    dim: int | None = None
    parts: tuple[int, ...] = ()
    rank: int = 0
    degree: int = 1

    def of(self, rank: int, degree: int) -> ShardLayout:
        """Return the slice of another rank, perhaps of another number of ranks."""
        return ShardLayout(self.shape, self.dim, self.parts, rank, degree)

    @property
    def is_whole(self) -> bool:
        """Whether every tensor-parallel rank holds the same."""
        return self.dim is None or self.degree == 1

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the slice."""
        if self.dim is None:
            return self.shape
        return tuple(size // self.degree if at == self.dim else size for at, size in enumerate(self.shape))

    @property
    def count(self) -> int:
        """Elements of the slice."""
        return math.prod(self.local_shape)

    def spans(self) -> Iterator[tuple[range, int]]:
        """Yield of every fused part where it is along ``dim`` of the slice, and how far on in the whole parameter."""
        local = whole = 0
        for part in self.parts:
            size = part // self.degree
            yield range(local, local + size), whole + self.rank * size - local
            local, whole = local + size, whole + part


def parameters_of(model: ModelConfig) -> dict[str, ShardLayout]:
    """Return every parameter of a derived ``model`` by its name in ``megads.models.gpt.GPT``, layer by layer."""
    return {each.name: ShardLayout(each.shape, each.dim, each.parts) for each in spec_of(model).parameters()}


def saved_parameters(model: ModelConfig) -> dict[str, ShardLayout]:
    """Return those of :func:`parameters_of` that a run saves: of a model with adapters these alone."""
    spec = spec_of(model)
    return {
        each.name: ShardLayout(each.shape, each.dim, each.parts) for each in spec.parameters() if spec.is_trained(each)
    }


class Box(NamedTuple):
    """A rectangle of the whole parameter, and where it lies in the flattened slice."""

    top: int
    bottom: int
    left: int
    right: int
    offset: int  # of the number at (top, left)
    stride: int  # from a number to the one below it

    def at(self, row: int, column: int) -> int:
        """Return where an element of the whole parameter is in the flattened slice."""
        return self.offset + (row - self.top) * self.stride + column - self.left


def boxes(cut: ShardLayout, first: int, count: int) -> list[Box]:
    """Return the rectangles of ``count`` numbers of the flattened slice from ``first`` on, none overlapping."""
    shape = cut.local_shape
    width = math.prod(shape[1:])
    found = []
    for top, bottom, left, right in _rectangles(first, first + count, width):
        offset = top * width + left
        if cut.is_whole:
            found.append(Box(top, bottom, left, right, offset, width))
            continue
        for span, moved in cut.spans():
            if cut.dim == 0:
                a, b = max(top, span.start), min(bottom, span.stop)
                box = Box(a + moved, b + moved, left, right, a * width + left, width)
            else:
                a, b = max(left, span.start), min(right, span.stop)
                box = Box(top, bottom, a + moved, b + moved, top * width + a, width)
            if a < b:
                found.append(box)
    return found


def _rectangles(first: int, last: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (top, bottom, left, right) of the end of a row, whole rows, and the beginning of a row."""
    while first < last:
        row, column = divmod(first, width)
        if column or last - first < width:
            end = min(last, (row + 1) * width)
            yield row, row + 1, column, column + end - first
        else:
            end = last - last % width
            yield row, end // width, 0, width
        first = end


def meet(one: Box, other: Box) -> tuple[int, int, int, int] | None:
    """Return the rectangle (top, bottom, left, right) that both have, None if there is none."""
    top, bottom = max(one.top, other.top), min(one.bottom, other.bottom)
    left, right = max(one.left, other.left), min(one.right, other.right)
    return (top, bottom, left, right) if top < bottom and left < right else None
