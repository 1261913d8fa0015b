"""One index on disk: a safetensors file whose header holds a checksum of itself and of every block of the data.

    8 bytes   length of the header
    header    JSON: ``__metadata__`` with ``crc32`` (of length and header, with eight zeros in that place),
              ``block_bytes``, ``blocks`` (CRC-32 of each block of data) and ``megads`` (the description);
              then the arrays
    data      the arrays, one behind the other

A header that differs in one bit from what was written is refused, so a file of an older version, which has
no checksums, is built again.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megads.data.samples.recipe import ArrayStream, Spec
from megads.errors import DataError
from megads.storage.checksums import NO_CRC, BlockChecksums, count_blocks, parse_digits
from megads.storage.open_file import open_regular
from megads.storage.reading import parse_json

BLOCK = 1 << 22
"""Bytes that share a checksum."""

_DTYPES = {"I16": "<i2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8"}
_NAMES = {np.dtype(name): code for code, name in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_MOST_HEADER = 1 << 26
_BEGIN = b'{"__metadata__": {"crc32": "'


class Damaged(ValueError):
    """A file that is not what was written; the message says in which way."""


class IndexFile:
    """An index that is there and whose header is what was written.

    Attributes:
        arrays: each array and the byte of the file at which it starts.

    Raises:
        FileNotFoundError: there is none.
        Damaged: the header, the size or the description is not right.
        DataError: it cannot be read, or is not a regular file.
    """

    def __init__(self, path: Path, description: str):
        self.path = path
        try:
            handle, self.size = open_regular(path, missing=lambda: "")
        except DataError:
            path.stat()  # not there: FileNotFoundError
            raise
        try:
            self._read(handle, description)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, struct.error) as error:
            raise error if isinstance(error, Damaged) else Damaged(f"no header of an index ({error!r:.60})") from None
        finally:
            os.close(handle)

    def _read(self, handle: int, description: str) -> None:
        head = os.pread(handle, _LENGTH.size, 0)
        (length,) = _LENGTH.unpack(head)
        if not 0 < length <= min(self.size - _LENGTH.size, _MOST_HEADER):
            raise Damaged(f"a header of {length} bytes in a file of {self.size}")
        text = os.pread(handle, length, _LENGTH.size)
        at, end = len(_BEGIN), len(_BEGIN) + len(NO_CRC)
        if not text.startswith(_BEGIN):
            raise Damaged("its header is not that of an index with checksums; an older version had none")
        if text[at:end] != f"{zlib.crc32(head + text[:at] + NO_CRC.encode() + text[end:]):08x}".encode():
            raise Damaged("its header changed since it was written, its CRC-32 differs")
        header: dict[str, Any] = parse_json(text)
        meta = header.pop("__metadata__")
        if meta["megads"] != description:
            raise Damaged("it belongs to another index")
        self.start, self.block = _LENGTH.size + length, int(meta["block_bytes"])
        self.arrays = _arrays(header, self.start)
        last, begin = self.arrays[-1]
        if begin + last.nbytes != self.size:
            raise Damaged(f"it has {self.size} bytes, expected {begin + last.nbytes}")
        self.checksums = parse_digits(meta["blocks"], count_blocks(self.size - self.start, self.block))

    def verify(self, step: Callable[[int], None]) -> None:
        """Read all of it once; ``step`` gets the bytes of each block.

        Raises:
            Damaged: a block is not what was written.
            DataError: it cannot be read any more.
        """
        handle, _ = open_regular(self.path, missing=lambda: "it was just removed")
        try:
            for number, expected in enumerate(self.checksums):
                at = self.start + number * self.block
                content = os.pread(handle, min(self.block, self.size - at), at)
                if zlib.crc32(content) != expected:
                    raise Damaged(f"block {number} changed since it was written, its CRC-32 differs")
                step(len(content))
        except OSError as error:
            raise Damaged(os.strerror(error.errno or 0).lower()) from None
        finally:
            os.close(handle)


def _arrays(header: Mapping[str, Any], start: int) -> list[tuple[Spec, int]]:
    """Return the arrays and where they start; refuse a hole between them."""
    found, end = [], 0
    for name, each in header.items():
        spec = Spec(name, np.dtype(_DTYPES[each["dtype"]]), tuple(each["shape"]))
        if each["data_offsets"] != [end, end + spec.nbytes] or any(type(n) is not int or n < 0 for n in spec.shape):
            raise Damaged(f"{name!r} is not where the array before it ends")
        found.append((spec, start + end))
        end += spec.nbytes
    return found


def write_index(handle: int, making: ArrayStream, description: str, step: Callable[[int], None]) -> None:
    """Write an index to an empty file; ``step`` gets the bytes of each piece.

    Raises:
        OSError: the file cannot be written.
    """
    total = sum(spec.nbytes for spec in making.specs)
    at = len(_header(making, description, NO_CRC * count_blocks(total, BLOCK)))
    end, checksums = at + total, BlockChecksums(BLOCK)
    for block in making.blocks:
        content = np.ascontiguousarray(block, block.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
        checksums.add(content)
        at = _write_all(handle, content, at)
        step(len(content))
    if at != end:
        raise AssertionError(f"an index of {total} bytes got {total + at - end}")
    _write_all(handle, memoryview(_header(making, description, checksums.digits())), 0)


def _header(making: ArrayStream, description: str, blocks: str) -> bytes:
    meta = {"crc32": NO_CRC, "block_bytes": str(BLOCK), "blocks": blocks, "megads": description}
    header: dict[str, Any] = {"__metadata__": meta}
    at = 0
    for spec in making.specs:
        code = _NAMES[spec.dtype.newbyteorder("<")]
        header[spec.name] = {"dtype": code, "shape": spec.shape, "data_offsets": (at, at + spec.nbytes)}
        at += spec.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    content = _LENGTH.pack(len(text)) + text
    begin = _LENGTH.size + len(_BEGIN)
    return content[:begin] + f"{zlib.crc32(content):08x}".encode() + content[begin + len(NO_CRC) :]


def _write_all(handle: int, left: memoryview, at: int) -> int:
    """Write ``left`` at byte ``at``; return the byte behind it."""
    while left:
        done = os.pwrite(handle, left[: 1 << 30], at)
        left, at = left[done:], at + done
    return at
