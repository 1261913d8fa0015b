"""Hand each data-parallel rank its micro-batches, as a pure function of the samples consumed."""

from __future__ import annotations

import numpy as np
import torch

from megads.data.build import Dataset
from megads.errors import DataError


class Batches:
    """Micro-batches of a data-parallel rank, in the order of the dataset.

    Samples are taken in blocks of ``micro_batch * data_size``; of each block, rank ``r`` takes
    ``r * micro_batch .. (r + 1) * micro_batch`` (Megatron's ``single`` order). So the samples of a
    step do not depend on the number of ranks, and starting at ``consumed`` is the same as
    skipping that many.

    Args:
        dataset: samples, int64 [seq_length + 1] each.
        micro_batch: samples per batch.
        data_rank: of this rank along the data axis.
        data_size: ranks along the data axis.
        consumed: samples that all ranks together have used so far.
        wrap: start again at the end (validation); without it, running out is an error.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        micro_batch: int,
        data_rank: int,
        data_size: int,
        consumed: int = 0,
        wrap: bool = False,
    ):
        if not 0 <= data_rank < data_size:
            raise ValueError(f"data rank {data_rank} of {data_size}")
        self.dataset = dataset
        self.micro_batch = micro_batch
        self.data_rank = data_rank
        self.data_size = data_size
        self.consumed = consumed
        self.wrap = wrap

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> torch.Tensor:
        """Return the next batch, int64 [micro_batch, seq_length + 1], on the CPU.

        Raises:
            DataError: the dataset has no further block of samples.
        """
        available, block = len(self.dataset), self.micro_batch * self.data_size
        if available == 0 or (self.consumed + block > available and not self.wrap):
            raise DataError(
                f"the data ends: {self.consumed} samples are consumed, {block} more are needed, {available} were "
                "prepared; raise TRAIN_ITERS (or TRAIN_SAMPLES) to go on"
            )
        first = self.consumed + self.data_rank * self.micro_batch
        samples = [self.dataset[(first + i) % available] for i in range(self.micro_batch)]
        self.consumed += block
        return torch.from_numpy(np.stack(samples))
