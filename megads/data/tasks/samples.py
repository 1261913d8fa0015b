"""The samples of a task: epochs of shuffled examples to train on, and every example of a file once to score."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megads.config.schema import RunConfig
from megads.data.tasks.examples import Example, TaskFile
from megads.data.tasks.rows import Packer, Row, TaskRow
from megads.data.tasks.task import Task
from megads.data.tokenizers.base import Tokenizer
from megads.errors import ConfigError


def steps_per_epoch(examples: int, batch: int, *, keep_last: bool) -> int:
    """Return the steps of ``batch`` samples in an epoch; a last one that is not full is dropped or kept.

    Raises:
        ConfigError: there is none.
    """
    steps = -(-examples // batch) if keep_last else examples // batch
    if not steps:
        raise ConfigError(
            f"GLOBAL_BATCH={batch} is larger than the {examples} examples to train on; lower it, or pass --keep-last"
        )
    return steps


class TrainSamples:
    """Epochs of all examples, each in an order of its own, which follows from the seed and the epoch.

    What is left of an epoch behind its last full step is dropped; with ``keep_last`` the step is filled with
    rows that do not count. So an epoch is a whole number of steps.
    """

    corpora: tuple[str, ...] = ()

    def __init__(
        self, examples: Sequence[Example], packer: Packer, *, batch: int, keep_last: bool, seed: int, samples: int
    ):
        self.examples, self.packer, self.seed, self.samples = examples, packer, seed, samples
        self.per_epoch = steps_per_epoch(len(examples), batch, keep_last=keep_last) * batch
        self.order = functools.lru_cache(maxsize=2)(self._order)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(len(self.examples))

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.packer.row.width

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Row:
        """Return the row of a sample, counted from the begin of the run."""
        epoch, place = divmod(index, self.per_epoch)
        if place >= len(self.examples):
            return self.packer.row.empty()
        return self.packer(self.examples[self.order(epoch)[place]])


class FileSamples:
    """The examples of a file in its order, and rows that do not count up to a multiple of ``block``."""

    def __init__(self, file: TaskFile, packer: Packer, block: int):
        self.file, self.packer = file, packer
        self.blocks = -(-len(file.examples) // block)
        self.block = block

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.packer.row.width

    def __len__(self) -> int:
        return self.blocks * self.block

    def __getitem__(self, index: int) -> Row:
        """Return the row of an example; behind the last one, a row that does not count."""
        examples = self.file.examples
        return self.packer(examples[index]) if index < len(examples) else self.packer.row.empty()


@dataclass(frozen=True)
class TaskSplits:
    """What a run trains on, None where it trains on nothing, and the files that it is scored by."""

    train: TrainSamples | None
    valid: tuple[FileSamples, ...]
    test: tuple[FileSamples, ...] = ()  # and those that it predicts


def build_task(run: RunConfig, task: Task, tokenizer: Tokenizer) -> TaskSplits:
    """Return the samples of a derived ``run``."""
    labels = task.choices if task.choices > 1 else run.model.num_classes
    packer = Packer(tokenizer, TaskRow(run.model.seq_length, task.choices), run.model.vocab_size, labels)
    batch, block = run.train.global_batch, run.train.micro_batch * run.parallel.data
    train = None
    if task.train and not run.train.evaluate_only:
        train = TrainSamples(
            list(itertools.chain.from_iterable(each.examples for each in task.train)),
            packer,
            batch=batch,
            keep_last=run.finetune.keep_last,
            seed=run.train.seed_of_data,
            samples=run.train.train_iters * batch,
        )
    valid, test = (tuple(FileSamples(each, packer, block) for each in files) for files in (task.valid, task.test))
    return TaskSplits(train, valid, test)
