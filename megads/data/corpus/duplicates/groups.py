"""Groups of near-duplicates: whoever is similar to one member belongs to the group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

THRESHOLD = 0.7
"""Similarity from which documents belong together, as in Megatron-LM."""


class Groups:
    """Grows by lines of pairs; keeps the identifiers of all lines in memory."""

    def __init__(self, threshold: float = THRESHOLD):
        self._threshold = threshold
        self._place: dict[str, int] = {}  # of an identifier, in the order in which they come
        self._parents: list[int] = []  # of each place
        self._labels: dict[int, int] = {}  # root -> number of the group
        self._count = 0

    def add(self, line: Mapping[str, Iterable[Mapping[str, float]]]) -> None:
        """Put the documents of ``{id: [{other id: similarity}, ...]}`` that are similar enough into one group."""
        names = []
        for main, others in line.items():
            names.append(main)
            names += [name for each in others for name, value in each.items() if value >= self._threshold]
        roots = [self._root(self._place[name]) for name in names if name in self._place]
        if not names:
            return
        if roots:
            label = self._labels[roots[0]]
        else:
            label, self._count = self._count, self._count + 1
        places = [self._place_of(name) for name in names]
        top = min(self._root(place) for place in places)
        for place in places:
            root = self._root(place)
            self._labels.pop(root, None)
            self._parents[root] = top
        self._labels[top] = label

    def found(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the groups of two and more, numbered as Megatron-LM does; members in the order in which they came."""
        members: dict[int, list[str]] = {}
        for name, place in self._place.items():
            members.setdefault(self._labels[self._root(place)], []).append(name)
        for label in sorted(members):
            if len(members[label]) > 1:
                yield label, members[label]

    def _place_of(self, name: str) -> int:
        place = self._place.setdefault(name, len(self._parents))
        if place == len(self._parents):
            self._parents.append(place)
        return place

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = place = self._parents[self._parents[place]]
        return place
