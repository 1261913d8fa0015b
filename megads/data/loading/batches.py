"""The micro-batches of a data-parallel rank, a pure function of the samples consumed, read ahead in threads.

Threads and not processes: what is slow about reading is waiting for the file system, and
``pread`` waits without holding Python's lock. A process would hold its own copy of
everything a rank has imported, could not be forked after the device or an MPI library has
started, and would send each batch through a pipe.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from megads.data.datasets import Samples
from megads.errors import DataError

AHEAD_BYTES = 256 * 2**20
"""Batches that wait for their step, of one rank, at most."""


@dataclass(frozen=True)
class Batches:
    """Micro-batches of a data-parallel rank, in the order of the dataset.

    Samples are taken in blocks of ``micro_batch * data_size``; of each block, rank ``r`` takes
    ``r * micro_batch .. (r + 1) * micro_batch`` (Megatron's ``single`` order). A step is a whole
    number of blocks, so its samples depend on how many were consumed before it and on nothing
    else: not on the number of ranks, on the micro-batch, or on where the run was resumed.
    """

    dataset: Samples
    micro_batch: int
    data_rank: int  # of this rank along the data axis
    data_size: int  # ranks along the data axis
    consumed: int = 0  # samples that all ranks together have used at the start

    def __post_init__(self) -> None:
        if not 0 <= self.data_rank < self.data_size:
            raise ValueError(f"data rank {self.data_rank} of {self.data_size}")

    @property
    def block(self) -> int:
        """The samples that all ranks together take with one micro-batch each."""
        return self.micro_batch * self.data_size

    def read(self, consumed: int) -> torch.Tensor:
        """Return the batch that comes when ``consumed`` samples are used, int64 [micro_batch, width]:
        a causal model's are seq_length + 1 tokens wide, for others see :mod:`megads.data.samples.masked.rows`
        and :mod:`megads.data.samples.retro.rows`.

        Raises:
            DataError: the dataset has no such block of samples.
        """
        available = len(self.dataset)
        if consumed + self.block > available:
            raise DataError(
                f"the data ends: {consumed} samples are consumed, {self.block} more are needed, {available} were "
                "prepared; raise TRAIN_ITERS (or TRAIN_SAMPLES)"
            )
        first = consumed + self.data_rank * self.micro_batch
        return torch.from_numpy(np.stack([self.dataset[i] for i in range(first, first + self.micro_batch)]))


class Prefetch:
    """The batches of a :class:`Batches`, the same in the same order, read ahead by threads.

    What fails while reading is raised where the batch is asked for, with the traceback of
    the thread, and not before: a broken sample of a later step does not end this one.

    Args:
        batches: what is read; its position is where this begins.
        workers: threads; 0: none, the caller of ``next`` reads.
        ahead: batches that are read or ready before they are asked for, at most.
        prepare: called with each batch by the thread that has read it; what it returns is the batch. None: nothing is.
    """

    def __init__(
        self,
        batches: Batches,
        workers: int,
        ahead: int,
        prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ):
        self.prepare = prepare
        self.batches = batches
        self.workers = workers
        self.ahead = max(workers, ahead)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[torch.Tensor]] = deque()
        self._begin(batches.consumed)

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> torch.Tensor:
        """Return the next batch; see :meth:`Batches.read`."""
        if not self.workers:
            batch = _read(self.batches, self.prepare, self._consumed)
        else:
            if os.getpid() != self._pid:
                # Threads do not live on in a forked process.
                self._begin(self._consumed)
            if not self._waiting:
                self._submit()
            batch = self._waiting[0].result()
            self._waiting.popleft()
        self._consumed += self.batches.block
        if self.workers:
            self._submit()
        return batch

    def seek(self, consumed: int) -> None:
        """Continue at ``consumed`` samples; what was read ahead is dropped."""
        if consumed != self._consumed:
            self.close()
            self._begin(consumed)

    def close(self, *, wait: bool = True) -> None:
        """End the threads, each after the batch it is reading, and ``wait`` for that. Asking for more starts over.

        A rank that fails does not wait for a file system.
        """
        pool, self._pool = self._pool, None
        self._waiting.clear()
        if pool is not None and os.getpid() == self._pid:
            pool.shutdown(wait=wait, cancel_futures=True)

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(wait=kind is None)

    def _begin(self, consumed: int) -> None:
        self._consumed = consumed
        self._pid = os.getpid()
        self._pool, self._waiting = None, deque()
        if self.workers:
            self._submit()

    def _submit(self) -> None:
        """Have as many batches under way as allowed; the first is the one that comes next."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="megads-data")
        first, block = self._consumed, self.batches.block
        while len(self._waiting) < self.ahead:
            self._waiting.append(
                self._pool.submit(_read, self.batches, self.prepare, first + len(self._waiting) * block)
            )


def _read(batches: Batches, prepare: Callable[[torch.Tensor], torch.Tensor] | None, consumed: int) -> torch.Tensor:
    batch = batches.read(consumed)
    return batch if prepare is None else prepare(batch)


def read_ahead(
    batches: Batches,
    workers: int,
    per_step: int,
    width: int,
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Prefetch:
    """Return ``batches``, ``width`` numbers a sample, read ahead by two steps or by what the memory for it holds."""
    size = batches.micro_batch * width * 8
    return Prefetch(batches, workers, min(2 * per_step, max(1, AHEAD_BYTES // size)), prepare)
