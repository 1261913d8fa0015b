"""Hand each data-parallel rank its micro-batches, as a pure function of the samples consumed."""

from __future__ import annotations

import numpy as np
import torch

from megads.data.datasets import Dataset
from megads.errors import DataError


class Batches:
    """Micro-batches of a data-parallel rank, in the order of the dataset.

    Samples are taken in blocks of ``micro_batch * data_size``; of each block, rank ``r`` takes
    ``r * micro_batch .. (r + 1) * micro_batch`` (Megatron's ``single`` order). A step is a whole
    number of blocks, so its samples depend on how many were consumed before it and on nothing
    else: not on the number of ranks, on the micro-batch, or on where the run was resumed.

    Reading does not change the object, so several threads may :meth:`read` at once.

    Args:
        dataset: samples, int64 [seq_length + 1] each.
        micro_batch: samples per batch.
        data_rank: of this rank along the data axis.
        data_size: ranks along the data axis.
        consumed: samples that all ranks together have used so far.
    """

    def __init__(self, dataset: Dataset, *, micro_batch: int, data_rank: int, data_size: int, consumed: int = 0):
        if not 0 <= data_rank < data_size:
            raise ValueError(f"data rank {data_rank} of {data_size}")
        self.dataset = dataset
        self.micro_batch = micro_batch
        self.data_rank = data_rank
        self.data_size = data_size
        self.consumed = consumed

    @property
    def block(self) -> int:
        """The samples that all ranks together take with one micro-batch each."""
        return self.micro_batch * self.data_size

    def samples_at(self, consumed: int) -> range:
        """Return the numbers in the dataset of this rank's samples when ``consumed`` are used."""
        first = consumed + self.data_rank * self.micro_batch
        return range(first, first + self.micro_batch)

    def read(self, consumed: int) -> torch.Tensor:
        """Return the batch that comes when ``consumed`` samples are used, int64 [micro_batch, seq_length + 1].

        Raises:
            DataError: the dataset has no such block of samples.
        """
        available = len(self.dataset)
        if consumed + self.block > available:
            raise DataError(
                f"the data ends: {consumed} samples are consumed, {self.block} more are needed, {available} were "
                "prepared; raise TRAIN_ITERS (or TRAIN_SAMPLES)"
            )
        return torch.from_numpy(np.stack([self.dataset[i] for i in self.samples_at(consumed)]))

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> torch.Tensor:
        """Return the next batch; see :meth:`read`."""
        batch = self.read(self.consumed)
        self.consumed += self.block
        return batch
