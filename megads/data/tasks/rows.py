"""An example as one row of integers: what a micro-batch holds of it.

::

    choice 0                     choice 1 ...   label
    text[S] | types[S] | length  ...            the number of the class or choice; -1: does not count

A text is ``[CLS] a [SEP] b [SEP]`` with types 0 up to the first ``[SEP]`` and 1 behind it, as in Megatron-LM:
what is longer than the sample loses its end, and the last token is ``[SEP]`` all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megads.data.samples.bounds import bounds_of
from megads.data.tasks.examples import Example
from megads.data.tasks.race import MAX_QUESTION
from megads.data.tokenizers.base import Tokenizer
from megads.errors import ConfigError, DataError

Row = npt.NDArray[np.int64]

CACHED = 256
"""Texts whose ids are kept: all choices of RACE have the same article."""


@dataclass(frozen=True)
class TaskRow:
    """Where things are in a row."""

    seq_length: int
    choices: int = 1

    @property
    def part(self) -> int:
        """Numbers of a choice."""
        return 2 * self.seq_length + 1

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.choices * self.part + 1

    def empty(self) -> Row:
        """Return a row that does not count."""
        row = np.zeros(self.width, np.int64)
        row[self.part - 1 : -1 : self.part] = 1
        row[-1] = -1
        return row


@dataclass(frozen=True)
class Marks:
    """The tokens around texts; None: there is none."""

    first: int | None  # [CLS], or what begins a text
    between: int | None  # [SEP], or what ends a text
    pad: int

    @staticmethod
    def of(tokenizer: Tokenizer) -> Marks:
        """Return those of ``tokenizer``: BERT's, else the begin and the end of texts, else none."""
        found = tokenizer.specials
        between = found.sep if found.sep is not None else found.eos
        if between is None:
            try:
                between = tokenizer.eod
            except ConfigError:
                between = None
        first = found.cls if found.cls is not None else found.bos
        return Marks(first, between, found.pad if found.pad is not None else between or 0)


class Packer:
    """Makes rows of examples.

    Args:
        vocab_size: tokens that the model knows; 0: not looked at.
        labels: different labels that there may be; 0: not looked at.

    Raises:
        DataError: of a call: a token or a label is outside of what the model knows.
    """

    def __init__(self, tokenizer: Tokenizer, row: TaskRow, vocab_size: int = 0, labels: int = 0):
        self.row, self.marks = row, Marks.of(tokenizer)
        self.vocab_size, self.labels = vocab_size, labels
        (self.bound,) = bounds_of(vocab_size, None)
        self.encode = functools.lru_cache(CACHED)(tokenizer.encode_plain)

    def __call__(self, example: Example) -> Row:
        """Return the row of an example."""
        row, size = np.empty(self.row.width, np.int64), self.row.seq_length
        for number, (first, second) in enumerate(example.pairs):
            ids = self.encode(first)
            a = ids[:MAX_QUESTION] if example.cuts_first else ids
            text, types = layout(a, None if second is None else self.encode(second), size, self.marks)
            at, fill = number * self.row.part, size - len(text)
            row[at : at + size] = [*text, *[self.marks.pad] * fill]
            row[at + size : at + 2 * size] = [*types, *[0] * fill]
            row[at + 2 * size] = len(text)
            if self.vocab_size and (problem := self.bound.problem(row[at : at + size])):
                raise DataError(f"the text {first[:60]!r} gives {problem}; use the tokenizer of the model")
        if self.labels and not -1 <= example.label < self.labels:
            raise DataError(f"an example has the label {example.label}, which is not one of -1 to {self.labels - 1}")
        row[-1] = example.label
        return row


def layout(a: Sequence[int], b: Sequence[int] | None, size: int, marks: Marks) -> tuple[list[int], list[int]]:
    """Return the tokens of one or two texts, at most ``size``, and the type of each."""
    first = [] if marks.first is None else [marks.first]
    between = [] if marks.between is None else [marks.between]
    text = [*first, *a, *between]
    types = [0] * len(text)
    if b is not None:
        text += b
        types += [1] * len(b)
    most = size - len(between)
    is_cut = len(text) > most
    text, types = text[:most], types[:most]
    if between and (b is not None or is_cut):
        text += between
        types.append(0 if b is None else 1)
    if not text:  # an empty text without marks: a token that says nothing
        text, types = [marks.pad], [0]
    return text, types
