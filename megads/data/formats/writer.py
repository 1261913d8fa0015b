"""Write token files of either format."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from megads.data.formats.dtypes import IMPLS, code_of
from megads.data.formats.files import NewFiles
from megads.data.formats.index_content import IndexContent, content_of
from megads.data.formats.mmap import mmap_index
from megads.data.formats.prefix import strip_suffix
from megads.data.formats.record import RECORD_SUFFIX
from megads.data.formats.tnt import tnt_index
from megads.errors import DataError


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
        self._check(values)
        count = min(len(values), 1)
        self._append(values, np.full(count, len(values), np.int32), np.array([count], np.int64))

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
        self._append(tokens, lengths, sequences)

    def finalize(self) -> None:
        """Write the index and give both files their names, the index last."""
        lengths, documents = np.frombuffer(self._lengths, "i4"), np.frombuffer(self._documents, "i8")
        with self._files.guard():
            write_pieces(self._files[".idx"], self.impl, content_of(self.dtype, lengths, documents))
        self._files.publish(RECORD_SUFFIX)

    def close(self) -> None:
        """Drop whatever was not finalised."""
        self._files.drop()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[Any], sequences: npt.NDArray[Any]) -> None:
        with self._files.guard():
            self._files[".bin"].write(np.ascontiguousarray(tokens, self.dtype).data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, "i4").tobytes())
        ends = np.cumsum(sequences, dtype="i8") + self._documents[-1]
        self._documents.frombytes(ends.tobytes())

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


def make_writer(prefix: str | Path, dtype: npt.DTypeLike, impl: str = "mmap") -> IndexedWriter:
    """Return the writer of a format: "mmap", or "cached" and "lazy", whose files are the same.

    Raises:
        DataError: the format is unknown, or the files cannot be written.
    """
    return IndexedWriter(prefix, dtype, impl)


def write_index(
    path: str | Path,
    impl: str,
    dtype: npt.DTypeLike,
    lengths: npt.NDArray[Any],
    documents: npt.NDArray[Any],
    modes: npt.NDArray[Any] | None = None,
) -> None:
    """Write an ``.idx`` file alone, whole or not at all, for a ``.bin`` file that already exists.

    Args:
        path: of the file, with its suffix.
        impl: "mmap", "cached" or "lazy".
        dtype: of the tokens.
        lengths: [N], tokens of each sequence; may be a mapped file, it is read in blocks.
        documents: [D], 0 and then the number of sequences up to the end of each document.
        modes: [N], kind of each sequence, for multimodal files.

    Raises:
        DataError: the file cannot be written.
    """
    _check_impl(impl, path)
    files = NewFiles(str(path), ("",))
    with files.guard():
        write_pieces(files[""], impl, content_of(np.dtype(dtype).newbyteorder("<"), lengths, documents, modes))
    files.publish()


def write_pieces(file: BinaryIO, impl: str, content: IndexContent) -> None:
    """Write the index of a format, piece by piece."""
    for piece in mmap_index(content) if impl == "mmap" else tnt_index(content):
        file.write(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)


def _check_impl(impl: str, where: object) -> None:
    if impl not in IMPLS:
        raise DataError(f"{where}: no format named {impl!r}; known: {', '.join(IMPLS)}")


def _total(counts: npt.NDArray[Any]) -> int:
    """Return the sum; -1 when a count is negative."""
    return -1 if len(counts) and counts.min() < 0 else int(counts.sum(dtype=np.int64))
