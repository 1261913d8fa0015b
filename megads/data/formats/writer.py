"""Write token files of either format; :mod:`megads.data.formats.token_file` describes them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from megads.data.formats.dtypes import IMPLS, code_of
from megads.data.formats.files import BLOCK, NewFiles
from megads.data.formats.prefix import strip_suffix
from megads.data.formats.record import RECORD_SUFFIX
from megads.data.formats.token_file import MMAP_HEADER, MMAP_MAGIC, TNT_HEADER, TNT_MAGIC, VERSION
from megads.errors import DataError

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


class IndexedWriter:
    """Writes ``<prefix>.bin`` and ``<prefix>.idx``; both appear at :meth:`finalize` or not at all.

    Use it in a ``with`` block, which removes what was written when the block fails::

        with IndexedWriter(prefix, best_dtype(vocab_size)) as writer:
            writer.add_document(tokens)
            writer.finalize()

    Memory: 4 bytes a sequence and 8 a document. A record (``<prefix>.info.json``) of files that
    were there before goes with them; write the new one after :meth:`finalize`.

    Raises:
        DataError: a token does not fit the type, or the files cannot be written.
    """

    def __init__(self, prefix: str | Path, dtype: npt.DTypeLike, impl: str = "mmap"):
        self.prefix = strip_suffix(str(prefix))
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.impl = impl
        code_of(self.dtype, self.prefix)
        _check_impl(impl, self.prefix)
        self._lengths = array("i")
        self._documents = array("q", [0])
        self._files = NewFiles(self.prefix, (".bin", ".idx"))

    def add_document(self, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Append one document as one sequence; an empty one gets an index entry and no sequence."""
        values = np.asarray(tokens if len(tokens) else (), dtype=None if len(tokens) else self.dtype)
        count = min(len(values), 1)
        self.add_batch(values, np.full(count, len(values), np.int32), np.array([count], np.int64))

    def add_batch(
        self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.integer[Any]], sequences: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Append many documents at once.

        Args:
            tokens: integers, those of all sequences end to end.
            lengths: [n], tokens of each sequence; they add up to ``len(tokens)``.
            sequences: [d], number of sequences of each document, 0 for an empty one; they add up to n.
        """
        lengths, sequences = np.asarray(lengths), np.asarray(sequences)
        self._check(tokens)
        if _total(lengths) != len(tokens) or _total(sequences) != len(lengths):
            self.close()
            raise DataError(
                f"{self.prefix}: a batch of {len(tokens)} tokens in {len(lengths)} sequences does not agree with its "
                f"lengths (sum {_total(lengths)}) or its sequences per document (sum {_total(sequences)})"
            )
        with self._files.guard():
            self._files[".bin"].write(np.ascontiguousarray(tokens, self.dtype).data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, "i4").tobytes())
        ends = np.cumsum(sequences, dtype="i8") + self._documents[-1]
        self._documents.frombytes(ends.tobytes())

    def finalize(self) -> None:
        """Write the index and give both files their names, the index last."""
        lengths, documents = np.frombuffer(self._lengths, "i4"), np.frombuffer(self._documents, "i8")
        with self._files.guard():
            write_pieces(self._files[".idx"], self.impl, _content_of(self.dtype, lengths, documents))
        self._files.publish(RECORD_SUFFIX)

    def close(self) -> None:
        """Drop whatever was not finalised."""
        self._files.drop()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, values: npt.NDArray[Any]) -> None:
        """Refuse anything but a row of integers that the type can hold."""
        first = len(self._documents) - 1
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            self.close()
            raise DataError(f"{self.prefix}: document {first} is not a row of token ids")
        if np.can_cast(values.dtype, self.dtype) or not len(values):
            return
        limits, low, high = np.iinfo(self.dtype), int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            self.close()
            raise DataError(
                f"{self.prefix}: document {first} holds token {high if high > limits.max else low}, which {self.dtype} "
                "cannot store; use int32"
            )


def write_index(
    path: str | Path, impl: str, dtype: npt.DTypeLike, lengths: npt.NDArray[Any], documents: npt.NDArray[Any]
) -> None:
    """Write an ``.idx`` file alone, whole or not at all, for a ``.bin`` file that already exists.

    Args:
        path: with its suffix.
        impl: one of :data:`IMPLS`.
        dtype: of the tokens.
        lengths: [N], tokens of each sequence; may be a mapped file, it is read in blocks.
        documents: [D], 0 and then the number of sequences up to the end of each document.

    Raises:
        DataError: the file cannot be written.
    """
    _check_impl(impl, path)
    files = NewFiles(str(path), ("",))
    with files.guard():
        write_pieces(files[""], impl, _content_of(dtype, lengths, documents))
    files.publish()


def write_pieces(file: BinaryIO, impl: str, content: IndexContent) -> None:
    """Write the index of a format, piece by piece."""
    for piece in _mmap_index(content) if impl == "mmap" else _tnt_index(content):
        file.write(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)


def _content_of(dtype: npt.DTypeLike, lengths: Numbers, documents: Numbers) -> IndexContent:
    """Return the content that lies in whole arrays; they may be mapped files."""

    def blocks(numbers: Numbers) -> Iterator[Numbers]:
        for start in range(0, len(numbers), BLOCK):
            yield numbers[start : start + BLOCK]

    kind = np.dtype(dtype).newbyteorder("<")
    return IndexContent(kind, len(lengths), len(documents), lambda: blocks(lengths), lambda: blocks(documents))


def starts(lengths: Source, scale: int = 1) -> Iterator[npt.NDArray[np.int64]]:
    """Yield where each sequence begins when they are laid end to end, as int64, counted in ``1 / scale`` tokens."""
    done = 0
    for block in lengths():
        ends = np.cumsum(block, dtype="<i8") * scale + done
        yield np.concatenate((np.array([done], "<i8"), ends[:-1]))
        done = int(ends[-1])


def _mmap_index(content: IndexContent) -> Iterator[bytes | Numbers]:
    """Yield the pieces of an MMIDIDX index, in order."""
    code = code_of(content.dtype, "index")
    yield MMAP_HEADER.pack(MMAP_MAGIC, VERSION, code, content.sequences, content.entries)
    yield from (block.astype("<i4") for block in content.lengths())
    yield from starts(content.lengths, content.dtype.itemsize)
    yield from (block.astype("<i8") for block in content.documents())
    if content.modes is not None:
        yield from (block.astype("i1") for block in content.modes())


def _tnt_index(content: IndexContent) -> Iterator[bytes | Numbers]:
    """Yield the pieces of a TNTIDX index, in order."""
    code, count = code_of(content.dtype, "index"), content.sequences
    yield TNT_HEADER.pack(TNT_MAGIC, VERSION, code, content.dtype.itemsize, count, count, content.entries)
    yield from (np.arange(a, min(a + BLOCK, count + 1), dtype="<i8") for a in range(0, count + 1, BLOCK))
    total = 0
    for block, begin in zip(content.lengths(), starts(content.lengths), strict=True):
        total += int(block.sum(dtype=np.int64))
        yield begin
    yield np.array([total], "<i8")
    yield from (block.astype("<i8") for block in content.lengths())
    yield from (block.astype("<i8") for block in content.documents())


def _check_impl(impl: str, where: object) -> None:
    if impl not in IMPLS:
        raise DataError(f"{where}: no format named {impl!r}; known: {', '.join(IMPLS)}")


def _total(counts: npt.NDArray[Any]) -> int:
    """Return the sum; -1 when a count is negative."""
    return -1 if len(counts) and counts.min() < 0 else int(counts.sum(dtype=np.int64))
