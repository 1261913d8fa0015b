"""Which of their tensors is which part of ours. Names and shapes, for both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.checkpoint.format.shard_layout import ShardLayout, parameters_of
from megads.config.schema import ModelConfig
from megads.families.family import HuggingFace
from megads.families.table import ALL_CLASSES

FIRST = ("embedding", "positions", "token_types", "embedding_norm")
"""Modules of the first step."""


@dataclass(frozen=True)
class HFTensor:
    """A tensor of a Hugging Face folder: some rows of one of our parameters."""

    name: str
    ours: str
    first: int  # row of ours that is its first
    rows: int  # how many rows of ours it is
    shape: tuple[int, ...]  # as it lies in their files
    transposed: bool = False  # they keep the matrix as [in, out]

    @property
    def width(self) -> int:
        """Elements in a row of ours."""
        return self.shape[0] if self.transposed else (self.shape[1] if len(self.shape) == 2 else 1)


def tensors_of(model: ModelConfig, architecture: str) -> list[HFTensor]:
    """Return every tensor of a folder of the class ``architecture``, layer by layer.

    The padding rows of our vocabulary are in none of them; a tied output layer is not one of them.
    """
    row = ALL_CLASSES[architecture]
    layers = [
        (f"{row.layers}.{layer}.{theirs}", f"layers.{layer}.{ours}", part)
        for layer in range(model.num_layers)
        for theirs, ours, part in row.inside
    ]
    layers += [
        (f"{row.decoder}.{layer}.{theirs}", f"layers.{model.num_layers + layer}.{ours}", part)
        for layer in range(model.decoder_layers)
        for theirs, ours, part in row.inside_decoder
    ]
    outside = {ours.format(last=model.num_layers - 1): theirs for ours, theirs in row.outside.items()}
    before = [(theirs, ours, None) for ours, theirs in outside.items() if ours in FIRST]
    after = [(theirs, ours, None) for ours, theirs in outside.items() if ours not in FIRST]
    parameters = parameters_of(model)
    return [tensor for names in (*before, *layers, *after) for tensor in _tensors(model, row, parameters, *names)]


def _tensors(
    model: ModelConfig, row: HuggingFace, parameters: dict[str, ShardLayout], theirs: str, ours: str, part: int | None
) -> Iterator[HFTensor]:
    """Yield the weight and the bias of a module, as far as the model has them."""
    for kind in ("weight", "bias"):
        name = f"{ours}.{kind}"
        if name not in parameters:
            continue
        cut = parameters[name]
        first, rows = (0, cut.shape[0]) if part is None else (sum(cut.parts[:part]), cut.parts[part])
        if ours in ("embedding", "head", "lm_head"):
            rows = model.vocab_size
        # GPT-2's linear layers are convolutions, which keep [in, out]; its tables are not.
        transposed = row.is_transposed and len(cut.shape) == 2 and ours.startswith("layers.")
        shape = (*cut.shape[1:], rows) if transposed else (rows, *cut.shape[1:])
        yield HFTensor(f"{theirs}.{kind}", name, first, rows, shape, transposed)
