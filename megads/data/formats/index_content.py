"""What an index says, format aside, in blocks: writing one takes the same memory for any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.files import BLOCK

Numbers = npt.NDArray[Any]
Source = Callable[[], Iterator[Numbers]]
"""Gives the same row of integers, in blocks, as often as it is called."""


@dataclass(frozen=True)
class IndexContent:
    """Everything an index holds; the offsets follow from the lengths."""

    dtype: np.dtype[Any]  # of the tokens
    sequences: int
    entries: int  # of the document index: documents + 1
    lengths: Source  # tokens of each sequence
    documents: Source  # the document index: 0, then the sequence behind each document
    modes: Source | None = None  # kind of each sequence, in multimodal files


def blocks(numbers: Numbers) -> Iterator[Numbers]:
    """Yield ``numbers`` in pieces."""
    for start in range(0, len(numbers), BLOCK):
        yield numbers[start : start + BLOCK]


def content_of(
    dtype: np.dtype[Any], lengths: Numbers, documents: Numbers, modes: Numbers | None = None
) -> IndexContent:
    """Return the content that lies in whole arrays; they may be mapped files."""
    return IndexContent(
        dtype,
        len(lengths),
        len(documents),
        lambda: blocks(lengths),
        lambda: blocks(documents),
        None if modes is None else lambda: blocks(modes),
    )


def starts(lengths: Source, scale: int = 1) -> Iterator[npt.NDArray[np.int64]]:
    """Yield where each sequence begins when they are laid end to end, as int64, counted in ``1 / scale`` tokens."""
    done = 0
    for block in lengths():
        ends = np.cumsum(block, dtype="<i8") * scale + done
        yield np.concatenate((np.array([done], "<i8"), ends[:-1]))
        done = int(ends[-1])
