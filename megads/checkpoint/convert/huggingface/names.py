"""Which of their tensors is which part of ours. Names and shapes, for both directions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megads.checkpoint.format.tensors import parameters_of
from megads.config.schema import ModelConfig
from megads.families.family import HuggingFace
from megads.families.table import CLASSES


@dataclass(frozen=True)
class Theirs:
    """A tensor of a Hugging Face folder: some rows of one of our parameters."""

    name: str
    ours: str
    first: int  # row of ours that is its first
    rows: int  # how many rows of ours it is
    shape: tuple[int, ...]  # as it lies in their files
    turned: bool = False  # they keep the matrix as [in, out]

    @property
    def width(self) -> int:
        """Numbers in a row of ours."""
        return self.shape[0] if self.turned else (self.shape[1] if len(self.shape) == 2 else 1)


def tensors_of(model: ModelConfig, architecture: str) -> list[Theirs]:
    """Return every tensor of a folder of the class ``architecture``, layer by layer.

    The padding rows of our vocabulary are in none of them; a tied output layer is not one of them.
    """
    maker, row = _Maker(model, CLASSES[architecture]), CLASSES[architecture]
    before, after = (
        [maker.parts(theirs, ours, None) for ours, theirs in row.outside.items() if (ours in _FIRST) == is_first]
        for is_first in (True, False)
    )
    return [*itertools.chain(*before, maker.layers(), *after)]


_FIRST = ("embedding", "positions")


class _Maker:
    def __init__(self, model: ModelConfig, row: HuggingFace):
        self.model, self.row, self.ours = model, row, parameters_of(model)

    def layers(self) -> Iterator[Theirs]:
        for layer in range(self.model.num_layers):
            for theirs, ours, part in self.row.inside:
                yield from self.parts(f"{self.row.layers}.{layer}.{theirs}", f"layers.{layer}.{ours}", part)

    def parts(self, theirs: str, ours: str, part: int | None) -> Iterator[Theirs]:
        """Yield the weight and the bias, as far as the model has them."""
        for kind in ("weight", "bias"):
            name = f"{ours}.{kind}"
            if name not in self.ours:
                continue
            cut = self.ours[name]
            first, rows = 0, cut.shape[0]
            if part is not None:
                first, rows = sum(cut.parts[:part]), cut.parts[part]
            if ours in ("embedding", "head"):
                rows = self.model.vocab_size
            # GPT-2's linear layers are convolutions, which keep [in, out]; its tables are not.
            turned = self.row.is_transposed and len(cut.shape) == 2 and ours.startswith("layers.")
            shape = (*cut.shape[1:], rows) if turned else (rows, *cut.shape[1:])
            yield Theirs(f"{theirs}.{kind}", name, first, rows, shape, turned)
