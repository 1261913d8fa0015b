"""Read and write Megatron's token files: ``<prefix>.bin`` and its index ``<prefix>.idx``.

Format, little-endian, as in Megatron-LM's ``indexed_dataset.py``::

    .idx   9 bytes   MMIDIDX, two zeros
           u64       version, 1
           u8        dtype code, see DTYPES
           u64       N, number of sequences
           u64       D, length of the document index: documents + 1
           i32 [N]   tokens of each sequence
           i64 [N]   where each sequence starts in .bin, in bytes
           i64 [D]   the sequence at which each document starts; the last entry is N
           i8  [N]   modes, in multimodal files only; not read here
    .bin   the tokens of all sequences, back to back
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from megads.data.file_list import strip_suffix
from megads.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES = {code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()}
_OLD_MAGIC = b"TNTIDX\x00\x00"
_FLOAT_CODES = (6, 7)
_HEADER = struct.Struct("<9sQBQQ")


def best_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest type Megatron uses for ids below ``vocab_size``: uint16 or int32."""
    return DTYPES[8] if vocab_size < 65500 else DTYPES[4]


def byte_offsets(lengths: npt.NDArray[np.int32], itemsize: int) -> npt.NDArray[np.int64]:
    """Return where sequences of ``lengths`` tokens start when laid end to end, in bytes, int64 [N]."""
    ends = np.cumsum(lengths, dtype="<i8") * itemsize
    return np.concatenate((np.zeros(1, "<i8"), ends))[:-1]


class IndexedDataset:
    """The sequences of ``<prefix>.bin``, mapped read-only; opening reads no tokens.

    A document is one sequence in files made for GPT, several in files split into sentences.

    Attributes:
        prefix: path without suffix.
        dtype: of the stored tokens.
        lengths: int32 [N], tokens of each sequence.
        document_index: int64 [D], first sequence of each document, then N.
        num_tokens: in the whole file.

    Raises:
        DataError: a file is missing, unreadable, of another format, cut short, or the two
            do not belong together.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = strip_suffix(str(prefix))
        self._bin_path, index_path = Path(self.prefix + ".bin"), Path(self.prefix + ".idx")
        index = _map(index_path)
        self.dtype, sequences, documents = _read_header(index, index_path)
        start = _HEADER.size
        self.lengths: npt.NDArray[np.int32] = np.frombuffer(index, "<i4", sequences, start)
        self._offsets: npt.NDArray[np.int64] = np.frombuffer(index, "<i8", sequences, start + 4 * sequences)
        self.document_index: npt.NDArray[np.int64] = np.frombuffer(index, "<i8", documents, start + 12 * sequences)
        if int(self.document_index[0]) != 0 or int(self.document_index[-1]) != sequences:
            raise DataError(
                f"{index_path}: broken document index: it runs from {self.document_index[0]} to "
                f"{self.document_index[-1]}, expected 0 to {sequences}; write the files again"
            )
        self._tokens = _map(self._bin_path)
        expected = int(self._offsets[-1]) + int(self.lengths[-1]) * self.dtype.itemsize
        if len(self._tokens) != expected:
            raise DataError(
                f"{self._bin_path}: has {len(self._tokens)} bytes, expected {expected} from {index_path.name}; "
                "the copy is cut short or the two files do not belong together"
            )
        self.num_tokens = expected // self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[type[IndexedDataset], tuple[str]]:
        # Mapped files can not be pickled; another process opens them again.
        return IndexedDataset, (self.prefix,)

    def get(self, i: int, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
        """Return ``length`` tokens of sequence ``i`` from ``offset`` on, read-only, as stored.

        Raises:
            DataError: the index points outside of the .bin file.
            IndexError: the sequence has no such tokens.
        """
        size = int(self.lengths[i])
        count = size - offset if length is None else length
        if not 0 <= offset <= offset + count <= size:
            raise IndexError(f"sequence {i} of {self.prefix} has {size} tokens, not {offset}..{offset + count}")
        try:
            return np.frombuffer(self._tokens, self.dtype, count, int(self._offsets[i]) + offset * self.dtype.itemsize)
        except ValueError:
            raise DataError(
                f"{self.prefix}.idx: sequence {i} (byte {self._offsets[i]}, {size} tokens) lies outside of "
                f"{self._bin_path.name}; write the files again"
            ) from None


def _map(path: Path) -> mmap.mmap:
    """Map a whole file read-only."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise DataError(f"{path}: is empty, expected token data; write the files again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a data prefix is the common part of a .bin and a .idx file") from None
    except OSError as error:
        raise DataError(f"{path}: {os.strerror(error.errno or 0).lower()}") from None


def _read_header(index: mmap.mmap, path: Path) -> tuple[np.dtype[Any], int, int]:
    """Return dtype, number of sequences and length of the document index."""
    if index[: len(_OLD_MAGIC)] == _OLD_MAGIC:
        raise DataError(f"{path}: is TNTIDX, Megatron's old cached/lazy format; preprocess again to the mmap format")
    if index[: len(MAGIC)] != MAGIC[: len(index)]:
        raise DataError(f"{path}: starts with {index[:9]!r}, expected {MAGIC!r} of Megatron's mmap format")
    if len(index) < _HEADER.size:
        raise DataError(f"{path}: cut short, {len(index)} bytes, expected at least the {_HEADER.size} of a header")
    _, version, code, sequences, documents = _HEADER.unpack_from(index)
    if version != VERSION:
        raise DataError(f"{path}: format version {version}, expected {VERSION}")
    if code not in DTYPES:
        kind = "floats, not tokens" if code in _FLOAT_CODES else "unknown"
        raise DataError(f"{path}: dtype code {code} is {kind}; expected one of {', '.join(map(str, DTYPES))}")
    expected = _HEADER.size + 12 * sequences + 8 * documents
    if len(index) not in (expected, expected + sequences):
        raise DataError(
            f"{path}: {len(index)} bytes, expected {expected} for {sequences} sequences and "
            f"{documents} document entries; the copy is cut short or broken"
        )
    if sequences == 0 or documents == 0:
        raise DataError(f"{path}: holds no sequences, expected at least one")
    return DTYPES[code], sequences, documents


class IndexedWriter:
    """Writes ``<prefix>.bin`` and ``<prefix>.idx``; both appear at :meth:`finalize` or not at all.

    Use it in a ``with`` block, which removes what was written when the block fails::

        with IndexedWriter(prefix, best_dtype(vocab_size)) as writer:
            writer.add_document(tokens)
            writer.finalize()

    Raises:
        DataError: a token does not fit the type, or the files can not be written.
    """

    def __init__(self, prefix: str | Path, dtype: npt.DTypeLike):
        self.prefix = strip_suffix(str(prefix))
        self.dtype = np.dtype(dtype).newbyteorder("<")
        codes = [code for code, known in DTYPES.items() if known == self.dtype]
        if not codes:
            raise DataError(f"{self.prefix}: can not store {self.dtype} tokens; use uint16 or int32")
        self._code = codes[0]
        self._lengths = array("i")
        self._documents = array("q", [0])
        self._temps = {suffix: Path(f"{self.prefix}{suffix}.{os.getpid()}.tmp") for suffix in (".bin", ".idx")}
        self._file = self._guard(lambda: self._temps[".bin"].open("wb"))

    def add_document(self, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Append one document as one sequence; an empty one gets an index entry and no sequence."""
        values = np.asarray(tokens if len(tokens) else (), dtype=None if len(tokens) else self.dtype)
        limits = np.iinfo(self.dtype)
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            self._remove_temps()
            raise DataError(f"{self.prefix}: document {len(self._documents) - 1} is not a row of token ids")
        if len(values) and not (limits.min <= values.min() and values.max() <= limits.max):
            self._remove_temps()
            worst = values.max() if values.max() > limits.max else values.min()
            raise DataError(
                f"{self.prefix}: document {len(self._documents) - 1} holds token {worst}, which {self.dtype} can not "
                "store; use int32"
            )
        if len(values):
            self._guard(lambda: self._file.write(values.astype(self.dtype, copy=False).tobytes()))
            self._lengths.append(len(values))
        self._documents.append(len(self._lengths))

    def finalize(self) -> None:
        """Write the index and give both files their names, the index last."""
        self._guard(self._publish)

    def close(self) -> None:
        """Drop whatever was not finalised."""
        self._remove_temps()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish(self) -> None:
        _flush(self._file)
        with self._temps[".idx"].open("wb") as file:
            file.write(_HEADER.pack(MAGIC, VERSION, self._code, len(self._lengths), len(self._documents)))
            lengths = np.array(self._lengths, dtype="<i4")
            offsets = byte_offsets(lengths, self.dtype.itemsize)
            for values in (lengths, offsets, np.array(self._documents, dtype="<i8")):
                file.write(values.tobytes())
            _flush(file)
        # An index is only ever seen beside the tokens it describes.
        Path(self.prefix + ".idx").unlink(missing_ok=True)
        for suffix in (".bin", ".idx"):
            self._temps[suffix].replace(self.prefix + suffix)

    def _guard(self, action: Any) -> Any:
        try:
            return action()
        except OSError as error:
            self._remove_temps()
            reason = os.strerror(error.errno or 0).lower()
            raise DataError(
                f"{self.prefix}: can not be written: {reason}; free some space or use another folder"
            ) from None

    def _remove_temps(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None and not file.closed:
            try:
                file.close()
            except OSError:
                # Its last bytes do not matter: the file goes in the next line.
                file.raw.close()
        for path in self._temps.values():
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
