"""One file of a checkpoint: a safetensors file whose header holds a checksum of every block. No torch.

The data behind the header is cut into blocks of :data:`BLOCK` bytes, the last one shorter;
their CRC-32s are in the header's ``__metadata__`` as ``crc32``, eight digits each. So a
reader that wants a part of a tensor knows that what it read is what was written, without
reading the rest. The header's own CRC-32 is in the manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.errors import CheckpointError
from megads.storage.checksums import BLOCK, BlockChecksums, parse_digits
from megads.storage.reading import parse_json

AT_ONCE = 1 << 23
"""Bytes that one call of the system reads or writes."""
MAX_HEADER = 100_000_000
"""Bytes; the same bound as the safetensors library's."""
TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1")}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_ALIGN = 64
"""Data begins at a multiple of this."""
_KEPT = threading.local()
"""Of each thread: the file and the number of the block that it read a part of, and the block."""


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: ``count`` elements that come in chunks, in order."""

    key: str
    dtype: np.dtype[Any]
    count: int
    chunks: Callable[[], Iterable[NDArray[np.generic]]]

    @staticmethod
    def of(key: str, array: NDArray[np.generic]) -> Entry:
        """Return an entry of an array, flattened."""
        flat = np.ascontiguousarray(array).reshape(-1)
        return Entry(key, flat.dtype, flat.size, lambda: (flat,))

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return self.count * self.dtype.itemsize


def write_file(path: Path, entries: Sequence[Entry]) -> tuple[int, int]:
    """Write ``entries`` to ``path``, to the disk itself; return its bytes and its header's CRC-32.

    Nothing is copied that is contiguous already; checksums are made while the bytes pass, and
    the disk begins to write when the first have passed.

    Raises:
        OSError: the file cannot be written.
    """
    size = sum(entry.bytes for entry in entries)
    at = len(_header(entries, "0" * 8 * -(-size // BLOCK)))
    handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o666)
    try:
        blocks, begun = BlockChecksums(BLOCK), at
        for entry in entries:
            end = at + entry.bytes
            for view in _views(entry):
                blocks.add(view)
                _write_all(handle, view, at)
                at += len(view)
                if at - begun >= AT_ONCE:
                    _begin_writeback(handle, begun, at - begun)
                    begun = at
            if at != end:
                raise AssertionError(f"{path}: {entry.key} has {at - end:+d} bytes more than it said")
        header = _header(entries, blocks.digits())
        _write_all(handle, memoryview(header), 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    return at, zlib.crc32(header)


def _views(entry: Entry) -> Iterator[memoryview]:
    for chunk in entry.chunks():
        if chunk.size:
            view = chunk.data.cast("B")
            for at in range(0, len(view), AT_ONCE):
                yield view[at : at + AT_ONCE]


def _begin_writeback(handle: int, at: int, count: int) -> None:
    """Have the disk begin with these bytes, which otherwise wait in memory for the fsync at the end."""
    # Linux starts to write dirty pages that are marked as not needed, and returns at once.
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, at, count, os.POSIX_FADV_DONTNEED)


def _header(entries: Sequence[Entry], digits: str) -> bytes:
    """Return the eight bytes of length and the JSON, padded with spaces."""
    content: dict[str, object] = {"__metadata__": {"block_bytes": str(BLOCK), "crc32": digits}}
    at = 0
    for entry in entries:
        name = _NAMES[entry.dtype]
        content[entry.key] = {"dtype": name, "shape": [entry.count], "data_offsets": [at, at + entry.bytes]}
        at += entry.bytes
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _write_all(handle: int, view: memoryview, at: int) -> None:
    while view:
        done = os.pwrite(handle, view, at)
        view, at = view[done:], at + done


class TensorFile:
    """A file of :func:`write_file`, open for reading by any number of threads.

    Every byte that is given out has been checked. ``entries``: key -> type, elements, first byte in the data.
    ``crc32`` is that of the header, from the manifest.

    Raises:
        CheckpointError: it cannot be read, or its header is not what was written.
    """

    def __init__(self, path: Path, crc32: int):
        self.path = path
        try:
            self.handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from None
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            self._read_header(crc32)
            stack.pop_all()

    def _read_header(self, crc32: int) -> None:
        size = os.fstat(self.handle).st_size
        begin = bytearray(8)
        self._pread(memoryview(begin), 0)
        length = int.from_bytes(begin, "little")
        if length > min(size - 8, MAX_HEADER):
            raise self._damaged("its header")
        header = bytearray(8 + length)
        self._pread(memoryview(header), 0)
        if zlib.crc32(header) != crc32:
            raise self._damaged("its header")
        self.start, self.length = 8 + length, size - 8 - length
        try:
            content = parse_json(bytes(header[8:]))
            facts = content.pop("__metadata__")
            self.block_bytes = _number(int(facts["block_bytes"]), 1, 1 << 28)
            self.checksums = parse_digits(facts["crc32"], -(-self.length // self.block_bytes))
            self.entries = _entries(content, self.length)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: not a checkpoint file ({error!r:.80})") from None

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, key: str, first: int = 0, count: int | None = None) -> NDArray[np.generic]:
        """Return ``[count]`` elements of a tensor from ``first`` on; None: all that follow. Errors as :meth:`fill`."""
        dtype, total, _ = self._entry(key)
        out: NDArray[np.generic] = np.empty(max(0, total - first) if count is None else count, dtype)
        self.fill(key, first, out)
        return out

    def fill(self, key: str, first: int, out: NDArray[np.generic]) -> None:
        """Read elements of a tensor from ``first`` on into ``out``, ``[count]``, contiguous, of the tensor's type.

        Raises:
            CheckpointError: the bytes are not those that were written, or there are no such elements.
        """
        dtype, total, at = self._entry(key)
        if out.dtype != dtype or not 0 <= first <= first + out.size <= total:
            wanted = f"{out.dtype} {first} to {first + out.size}"
            raise CheckpointError(f"{self.path}: {key} has {total} elements {dtype}, expected {wanted}")
        if out.size:
            self._fill(out.data.cast("B"), at + first * dtype.itemsize)

    def where(self, key: str) -> int:
        """Return the byte of the data at which a tensor begins; CheckpointError when it does not exist."""
        return self._entry(key)[2]

    def _entry(self, key: str) -> tuple[np.dtype[Any], int, int]:
        if key not in self.entries:
            raise CheckpointError(f"{self.path}: holds no {key}; it is not what the manifest says")
        return self.entries[key]

    def _fill(self, out: memoryview, at: int) -> None:
        """Read the bytes from ``at`` on; whole blocks go where they are wanted, parts of one over a copy of it."""
        while out:
            index, inside = divmod(at, self.block_bytes)
            length = min(self.block_bytes, self.length - index * self.block_bytes)
            if inside or len(out) < length:
                done = min(len(out), length - inside)
                out[:done] = self._whole_block(index, length)[inside : inside + done]
            else:
                most = min(len(out), max(AT_ONCE, self.block_bytes))
                done = most if at + most == self.length else most - most % self.block_bytes
                self._into(out[:done], index)
            out, at = out[done:], at + done

    def _whole_block(self, index: int, length: int) -> memoryview:
        """Return a block, which a thread keeps until it wants a part of another: small tensors share one."""
        file, number, block = getattr(_KEPT, "block", (None, 0, memoryview(b"")))
        if (file, number) != (self, index):
            _KEPT.block = (None, 0, memoryview(b""))
            block = memoryview(bytearray(length))
            self._into(block, index)
            _KEPT.block = (self, index, block)
        return block

    def _into(self, out: memoryview, index: int) -> None:
        """Read whole blocks from ``index`` on."""
        self._pread(out, self.start + index * self.block_bytes)
        for number, at in enumerate(range(0, len(out), self.block_bytes), start=index):
            if zlib.crc32(out[at : at + self.block_bytes]) != self.checksums[number]:
                raise self._damaged(f"block {number}")

    def _pread(self, out: memoryview, at: int) -> None:
        while out:
            try:
                count = os.preadv(self.handle, [out], at)
            except OSError as error:
                raise CheckpointError(f"{self.path}: {error.strerror}") from None
            if not count:
                raise CheckpointError(f"{self.path}: ends too early")
            out, at = out[count:], at + count

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what} changed since it was written, its CRC-32 differs")

    def check(self) -> Iterator[int]:
        """Read every block; yield, now and then, how many bytes more are as written; CheckpointError when not."""
        step = max(1, AT_ONCE // self.block_bytes)
        buffer = memoryview(bytearray(min(self.length, step * self.block_bytes)))
        for index in range(0, len(self.checksums), step):
            count = min(len(buffer), self.length - index * self.block_bytes)
            self._into(buffer[:count], index)
            yield count


def _number(value: object, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is not an integer from {least} to {most}")
    return value


def _entries(content: dict[str, dict[str, Any]], length: int) -> dict[str, tuple[np.dtype[Any], int, int]]:
    """Return where each tensor is, after checking that together they are the data, without a hole."""
    found: dict[str, tuple[np.dtype[Any], int, int]] = {}
    end = 0
    for key, each in content.items():
        dtype = TYPES[each["dtype"]]
        (count,) = each["shape"]
        if each["data_offsets"] != [end, end + _number(count) * dtype.itemsize]:
            raise ValueError(f"{key!r:.40} is not where the one before it ends")
        found[key] = (dtype, count, end)
        end += count * dtype.itemsize
    if end != length:
        raise ValueError(f"{length} bytes of tensors, its header says {end}")
    return found
