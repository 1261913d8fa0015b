"""What a model that looks at neighbours keeps of each sequence besides its keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from megads.inference.cache import KeyValueCache
from megads.inference.retro.neighbors import NeighborSource, Texts


@dataclass
class Row:
    """A sequence.

    Attributes:
        tokens: all of it.
        source: of its neighbours; None: it has none.
        neighbors: of its whole chunks so far, ``[k, r]`` each.
        across: name of a layer -> keys and values ``[k r, kv heads, D]`` of the neighbours of its last whole chunk.
    """

    tokens: list[int] = field(default_factory=list)
    source: NeighborSource | None = None
    neighbors: list[Texts] = field(default_factory=list)
    across: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def copy(self) -> Row:
        """Return a row that grows by itself."""
        return replace(self, tokens=[*self.tokens], neighbors=[*self.neighbors], across={**self.across})


class RetroCache(KeyValueCache):
    """Keys and values as in :class:`KeyValueCache`, and a :class:`Row` of each slot.

    Arguments are those of :class:`KeyValueCache`.
    """

    @cached_property
    def rows(self) -> list[Row]:
        """What is kept of each slot."""
        return [Row() for _ in range(self.num_slots)]

    def move(self, source: int, target: int, length: int) -> None:
        """Put the first ``length`` tokens of slot ``source`` into slot ``target``, and its row."""
        super().move(source, target, length)
        self.rows[target] = self.rows[source].copy()

    def reorder(self, sources: Tensor, length: int) -> None:
        """Let slot i hold what slot ``sources[i]`` holds, of the first ``length`` tokens; and its row."""
        super().reorder(sources, length)
        self.rows[: len(sources)] = [self.rows[source].copy() for source in sources.tolist()]

    def across(self, layer: str, slots: int, width: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return keys and values of the neighbours that the first ``slots`` sequences look at now.

        Args:
            width: k r, kv heads and D.

        Returns:
            Keys and values ``[slots, k r, kv heads, D]``, and which sequences have neighbours, ``[slots, 1, 1]``
            bool; None: all.
        """
        empty = torch.zeros(2, *width, dtype=self._dtype, device=self._device)
        found = [row.across.get(layer) for row in self.rows[:slots]]
        keys, values = (torch.stack([each[part] if each else empty[part] for each in found]) for part in range(2))
        if all(found):
            return keys, values, None
        has = torch.tensor([each is not None for each in found], device=self._device)
        return keys, values, has.view(-1, 1, 1)
