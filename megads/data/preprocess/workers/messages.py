"""What the process that leads and its workers exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Ready:
    """A worker's first word: it has its tokenizer."""

    vocab_size: int
    eod: int | None
    fingerprint: str
    encoder: str  # name of what encodes, as for --encoder
    library: str  # the same, with its version
    reason: str  # why this one


@dataclass(frozen=True)
class Start:
    """The leader's first word: where to write, and as what."""

    encoder: str
    bins: tuple[str, ...]  # files, one for each key
    dtype: str


@dataclass(frozen=True)
class Block:
    """A stretch of the input: the lines that begin at bytes ``start`` up to ``stop`` of ``path``."""

    number: int
    segment: int  # index among those of the part
    path: str
    start: int
    stop: int
    used: int  # bytes of the file on disk for the segment up to here
    data: bytes | None = None  # the lines themselves, where the file cannot be read from its middle


@dataclass(frozen=True)
class Output:
    """What a block adds to one pair of token files."""

    num_bytes: int
    lengths: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """A block is encoded; its tokens wait in the worker."""

    number: int
    outputs: tuple[Output, ...]
    documents: int
    text_bytes: int
    lines: int
    bad: list[tuple[int, str]]  # (index of the line within the block, what is wrong)
    note: str = ""  # worth telling once


@dataclass(frozen=True)
class Write:
    """Where the tokens of a block belong, in bytes, for each key."""

    number: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """The tokens of a block are in their files."""

    number: int


@dataclass(frozen=True)
class Failed:
    """A worker cannot continue."""

    error: Any  # the exception
    number: int = -1  # of the block
    line: int = -1  # of the block
