"""The samples of a chat task: epochs of packed and shuffled rows to train on, and every example of a file to score."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megads.config.schema import RunConfig
from megads.data.chat.blend import Blend, Numbers, Shared, parse_files
from megads.data.chat.examples import ExampleMaker, find_template
from megads.data.chat.index import ChatFile, ChatIndex
from megads.data.chat.packing import pack
from megads.data.chat.rows import ChatRow, Row
from megads.data.chat.templates import Template
from megads.data.samples.index_cache.cache import Cache
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import load_tokenizer, spec_of
from megads.errors import ConfigError
from megads.text.units import count as count_text


@dataclass(frozen=True)
class ChatData:
    """The files of a run, read."""

    template: Template
    train: tuple[ChatFile, ...]
    weights: tuple[float, ...] | None  # of the files to train on
    valid: tuple[ChatFile, ...]

    @property
    def notes(self) -> list[str]:
        """Lines worth showing to the user."""
        files = {file.path: file for file in (*self.train, *self.valid)}
        return [line for file in files.values() for line in file.report.lines(os.path.relpath(file.path))]

    def fingerprint(self, *, packs: bool) -> str:
        """Return what differs when a file, its share or an example does: a resumed run compares it."""
        rows = [(os.path.basename(file.path), file.digest) for file in self.train]
        content = json.dumps([rows, self.weights, packs])
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def read_chats(run: RunConfig) -> ChatData:
    """Return the files that a run names, whose vocabulary and length are known.

    Raises:
        ConfigError: it names no files, or a chat template that does not fit its tokenizer.
        DataError: a file is missing or broken, or has nothing to learn.
    """
    given = run.finetune
    train = parse_files(given.train_data, "TASK_TRAIN_DATA") if given.epochs else ()
    valid = parse_files(given.valid_data, "TASK_VALID_DATA")
    if any(each.weight is not None for each in valid):
        raise ConfigError(f"TASK_VALID_DATA={given.valid_data}: files to score have no weights; pass their paths only")
    cache = os.path.abspath(os.path.expanduser(run.data.cache_dir))
    known = (run.model.seq_length, run.model.vocab_size)
    return _read(train, valid, given.chat_template, spec_of(run), known, cache, _Run(run))


class _Run:
    """A run that is equal to every other: what of it counts stands next to it."""

    def __init__(self, run: RunConfig):
        self.run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Run)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=1)
def _read(
    train: tuple[Shared, ...],
    valid: tuple[Shared, ...],
    name: str,
    spec: TokenizerSpec,
    known: tuple[int, int],
    cache: str,
    given: _Run,
) -> ChatData:
    """Read the files, once in a process: the launcher asks several times."""
    tokenizer = load_tokenizer(given.run)
    template = find_template(name, tokenizer)
    written = hashlib.blake2b(f"{type(template).__name__} {template.jinja}".encode(), digest_size=8).hexdigest()
    about = (spec.type, tokenizer.fingerprint, written, *known)
    recipes = [
        ChatIndex.of(each.path, about, lambda: ExampleMaker(tokenizer, template, *known)) for each in (*train, *valid)
    ]
    kept = Cache.of(given.run)
    files = {recipe.path: ChatFile.read(recipe, kept) for recipe in recipes}
    found = [files[recipe.path] for recipe in recipes]
    weights = [each.weight for each in train if each.weight is not None]
    return ChatData(template, tuple(found[: len(train)]), tuple(weights) or None, tuple(found[len(train) :]))


class ChatEpochs:
    """The rows of every epoch, which follow from the seed and the epoch.

    Args:
        batch: rows of a step; behind the last row of an epoch its last step has rows that do not count.
    """

    def __init__(self, data: ChatData, seq_length: int, *, packs: bool, seed: int, batch: int):
        self.files, self.seq_length, self.packs, self.seed, self.batch = data.train, seq_length, packs, seed, batch
        self.blend = Blend([len(file) for file in data.train], data.weights, seed)
        self.lengths = np.concatenate([file.lengths for file in data.train])
        self.rows = functools.lru_cache(maxsize=2)(self._rows)
        self._ends: list[int] = []  # of each epoch, in steps
        self._lock = threading.Lock()

    def steps_until(self, epoch: int) -> int:
        """Return the steps of the first ``epoch`` epochs."""
        with self._lock:
            while len(self._ends) < epoch:
                if self._ends and self.blend.is_constant:
                    self._ends.append(self._ends[-1] + self._ends[0])
                    continue
                steps = -(-len(self.rows(len(self._ends))) // self.batch)
                self._ends.append(steps + (self._ends[-1] if self._ends else 0))
            return self._ends[epoch - 1] if epoch else 0

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, that has a step, from 0."""
        epoch = max(1, len(self._ends))
        while self.steps_until(epoch) <= step:
            epoch += 1
        return bisect_right(self._ends, step)

    def examples_of(self, index: int) -> Numbers:
        """Return the examples of a row, counted from the begin of the run; none of one that fills a step."""
        epoch = self.epoch_of(index // self.batch)
        rows = self.rows(epoch)
        place = index - self.steps_until(epoch) * self.batch
        return rows[place] if place < len(rows) else np.empty(0, np.int64)

    def _rows(self, epoch: int) -> list[Numbers]:
        drawn = self.blend.draw(epoch)
        generator = np.random.Generator(np.random.PCG64([self.seed, 0, epoch]))
        if self.packs:
            rows = [drawn[row] for row in pack(self.lengths[drawn], self.seq_length, generator)]
        else:
            rows = list(drawn[:, None])
        return [rows[i] for i in generator.permutation(len(rows))]

    @property
    def fill(self) -> float:
        """Share of the places of the first epoch's rows that hold tokens."""
        rows = self.rows(0)
        return float(sum(self.lengths[row].sum() for row in rows)) / (len(rows) * self.seq_length)


class TrainRows:
    """The rows of all epochs of a run."""

    corpora: tuple[str, ...] = ()

    def __init__(self, epochs: ChatEpochs, samples: int):
        self.epochs, self.samples, self.row = epochs, samples, ChatRow(epochs.seq_length)
        self.files, self.firsts = epochs.files, epochs.blend.firsts

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.row.width

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Row:
        """Return a row, counted from the begin of the run."""
        found = []
        for number in self.epochs.examples_of(index).tolist():
            file = bisect_right(self.firsts, number) - 1
            found.append(self.files[file].example(number - int(self.firsts[file])))
        return self.row.make(found)


class FileRows:
    """The examples of a file, each once, and rows that do not count up to a multiple of ``block``."""

    def __init__(self, file: ChatFile, seq_length: int, *, packs: bool, block: int):
        self.file, self.row, self.block = file, ChatRow(seq_length), block
        self.rows = [[number] for number in range(len(file))]
        if packs:
            self.rows = pack(file.lengths, seq_length, np.random.Generator(np.random.PCG64(0)))
        self.blocks = -(-len(self.rows) // block)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.row.width

    def __len__(self) -> int:
        return self.blocks * self.block

    def __getitem__(self, index: int) -> Row:
        """Return a row; behind the last one, one that does not count."""
        numbers: Sequence[int] = self.rows[index] if index < len(self.rows) else ()
        return self.row.make([self.file.example(number) for number in numbers])


@dataclass(frozen=True)
class ChatSplits:
    """What a run trains on, None where it trains on nothing, and the files that it is scored by."""

    train: TrainRows | None
    valid: tuple[FileRows, ...]


def make_epochs(run: RunConfig, data: ChatData) -> ChatEpochs:
    """Return the epochs of a derived ``run``."""
    seed, batch = run.train.seed_of_data, run.train.global_batch
    return ChatEpochs(data, run.model.seq_length, packs=run.finetune.packs, seed=seed, batch=batch)


def build_chats(run: RunConfig, data: ChatData) -> ChatSplits:
    """Return the samples of a derived ``run``."""
    length, block, packs = run.model.seq_length, run.train.micro_batch * run.parallel.data, run.finetune.packs
    train = None
    if data.train and not run.train.evaluate_only:
        train = TrainRows(make_epochs(run, data), run.train.train_iters * run.train.global_batch)
    return ChatSplits(train, tuple(FileRows(file, length, packs=packs, block=block) for file in data.valid))


def summary(run: RunConfig, data: ChatData) -> str:
    """Return what the banner says of the chats."""
    template = run.finetune.chat_template
    named = getattr(data.template, "name", "the tokenizer's")
    words = [f"template {named}" if template == "auto" else f"template {template}"]
    if data.train:
        epochs = make_epochs(run, data)
        learnt = sum(len(file) for file in data.train)
        tokens = count_text(int(epochs.lengths.sum()))
        rows = f"{len(epochs.rows(0))} rows an epoch, {1 - epochs.fill:.1%} padding"
        words += [f"{learnt} examples of {tokens} tokens", rows + ("" if run.finetune.packs else " (not packed)")]
    return ", ".join(words)
