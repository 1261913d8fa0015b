"""The mean of the hidden states of a text's own tokens, as Megatron's embedding of chunks takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megads.retro.embedders.base import Progress


@torch.inference_mode()
def embed_rows(
    rows: Sequence[Sequence[int]],
    dim: int,
    batch: int,
    hidden: Callable[[Sequence[Sequence[int]]], Tensor],
    progress: Progress,
) -> npt.NDArray[np.float32]:
    """Return the mean vector of each row's tokens but the first and last ([CLS] and [SEP]), float32 [rows, dim].

    A row without others gets zeros.

    Args:
        rows: tokens of each text with those at its ends.
        dim: of the hidden states.
        batch: rows at a time.
        hidden: maps rows to their hidden states, [rows, longest, dim].
        progress: called with the rows done since the last call.
    """
    out = np.zeros((len(rows), dim), np.float32)
    for first in range(0, len(rows), batch):
        part = rows[first : first + batch]
        states = hidden(part).float()
        for number, row in enumerate(part):
            if len(row) > 2:
                out[first + number] = states[number, 1 : len(row) - 1].mean(dim=0).cpu().numpy()
        progress(len(part))
    return out
