"""The grid of ranks: who sits where, and who shares a group. Arithmetic only, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from megads.errors import ConfigError

AXES = ("pipe", "data", "seq", "tensor")  # outermost first; tensor ranks are neighbours


@dataclass(frozen=True)
class Grid:
    """Ranks ``0..world_size-1`` laid out row-major over ``AXES``.

    With ``Grid(pipe=2, data=1, seq=1, tensor=2)``::

        pipe=0: ranks 0 1      pipe=1: ranks 2 3

    In general ``rank = ((pipe * DATA + data) * SEQ + seq) * TENSOR + tensor``.

    Raises:
        ConfigError: a degree is below 1.
    """

    pipe: int = 1
    data: int = 1
    seq: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for axis, degree in zip(AXES, self.shape, strict=True):
            if degree < 1:
                raise ConfigError(f"grid: {axis} has degree {degree}; a degree is at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the degrees in the order of ``AXES``."""
        return (self.pipe, self.data, self.seq, self.tensor)

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return prod(self.shape)

    def degree(self, *along: str) -> int:
        """Return the size of a group along the given axes."""
        return prod(self.shape[AXES.index(axis)] for axis in along)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the rank's index along every axis.

        Raises:
            ConfigError: the grid has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"grid of {self.world_size} ranks has no rank {rank}")
        where: dict[str, int] = {}
        for axis, degree in zip(reversed(AXES), reversed(self.shape), strict=True):
            rank, where[axis] = divmod(rank, degree)
        return where

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Return the rank at ``coordinate``; the inverse of :meth:`coordinate`. A missing axis is 0.

        Raises:
            ConfigError: an axis is unknown or an index lies outside its degree.
        """
        if unknown := sorted(set(coordinate) - set(AXES)):
            raise ConfigError(f"grid: no axis {unknown[0]!r}; the axes are {', '.join(AXES)}")
        rank = 0
        for axis, degree in zip(AXES, self.shape, strict=True):
            index = coordinate.get(axis, 0)
            if not 0 <= index < degree:
                raise ConfigError(f"grid: index {index} is outside axis {axis}, which has degree {degree}")
            rank = rank * degree + index
        return rank

    def groups(self, *along: str) -> list[tuple[int, ...]]:
        """Partition the ranks into groups that differ only in the axes ``along``, by their first rank."""
        strides = self._strides()
        starts = _sums((self.degree(axis), strides[axis]) for axis in AXES if axis not in along)
        return [tuple(start + offset for offset in self._offsets(*along)) for start in starts]

    def group_of(self, rank: int, *along: str) -> tuple[int, ...]:
        """Return the ranks that share a group along the given axes with ``rank``, ascending.

        The work grows with the group, not with the grid.
        """
        where, strides = self.coordinate(rank), self._strides()
        first = rank - sum(where[axis] * strides[axis] for axis in along)
        return tuple(first + offset for offset in self._offsets(*along))

    def _strides(self) -> dict[str, int]:
        """Return how far apart neighbours along each axis are."""
        return {axis: prod(self.shape[place + 1 :]) for place, axis in enumerate(AXES)}

    def _offsets(self, *along: str) -> list[int]:
        strides = self._strides()
        return _sums((self.degree(axis), strides[axis]) for axis in AXES if axis in along)


def _sums(steps: Iterable[tuple[int, int]]) -> list[int]:
    """Return every sum of multiples ``0 .. degree - 1`` of each stride, the last stride fastest."""
    sums = [0]
    for degree, stride in steps:
        sums = [start + index * stride for start in sums for index in range(degree)]
    return sums
