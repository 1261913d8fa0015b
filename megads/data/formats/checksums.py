"""CRC-32 of every 16 MiB of a pair of token files, kept in their record (``<prefix>.info.json``)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.formats.files import ReadFile
from megads.storage.checksums import count_blocks, parse_digits

BLOCK = 1 << 24
"""Bytes that share a checksum."""

_PIECE = 1 << 21  # bytes read at a time


@dataclass(frozen=True)
class Checksums:
    """Of both files of a pair: eight hexadecimal digits a block."""

    block_bytes: int
    bin: str
    idx: str

    @staticmethod
    def parse(content: dict[str, Any]) -> Checksums:
        """Return what a record holds.

        Raises:
            TypeError, ValueError: it is something else.
        """
        found = Checksums(**content)
        if type(found.block_bytes) is not int or not _PIECE <= found.block_bytes <= 1 << 40:
            raise ValueError(f"checksums of {found.block_bytes!r:.20} bytes")
        if found.block_bytes & (found.block_bytes - 1):
            raise ValueError(f"checksums of {found.block_bytes} bytes, expected a power of two")
        for digits in (found.bin, found.idx):
            parse_digits(digits, len(digits) // 8)
        return found

    def of(self, suffix: str, size: int) -> list[int]:
        """Return the checksums of ``.bin`` or ``.idx``, which has ``size`` bytes; ValueError if not so many."""
        return list(parse_digits(self.bin if suffix == ".bin" else self.idx, count_blocks(size, self.block_bytes)))


def _nothing() -> None:
    """Nobody wants to stop it."""


def checksums_of(
    bin_path: Path, idx_path: Path, *, threads: int = 1, check: Callable[[], None] = _nothing
) -> Checksums:
    """Read both files and return their checksums; ``check`` is called now and then and may raise to stop.

    Raises:
        DataError: a file cannot be read.
    """
    files = [ReadFile(bin_path), ReadFile(idx_path)]
    tasks = [(file, number) for file in files for number in range(count_blocks(file.size, BLOCK))]
    digits = {id(file): "" for file in files}
    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            for (file, _), value in zip(
                tasks, pool.map(lambda task: crc_of(task[0], task[1], BLOCK), tasks), strict=True
            ):
                digits[id(file)] += f"{value:08x}"
                check()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Checksums(BLOCK, *(digits[id(file)] for file in files))


def crc_of(file: ReadFile, number: int, block_bytes: int) -> int:
    """Return the CRC-32 of a block of a file."""
    value, at = 0, number * block_bytes
    end = min(at + block_bytes, file.size)
    while at < end:
        piece = file.bytes(min(_PIECE, end - at), at)
        value = zlib.crc32(piece, value)
        at += len(piece)
    return value


def file_problems(file: ReadFile, checksums: Checksums, only: int | None = None) -> Iterator[str]:
    """Yield a line for the first block that is not what was written.

    Args:
        file: ``.bin`` or ``.idx``.
        checksums: of its record.
        only: look at no more than so many blocks, evenly spaced; None: at all.

    Raises:
        DataError: the file cannot be read.
    """
    suffix = os.path.splitext(file.path)[1]
    try:
        expected = checksums.of(suffix, file.size)
    except ValueError as error:
        yield f"{file.path}: its record holds {error}; the two do not belong together"
        return
    step = 1 if only is None else max(1, -(-len(expected) // only))
    for number in range(0, len(expected), step):
        if crc_of(file, number, checksums.block_bytes) != expected[number]:
            yield changed(file, number, checksums.block_bytes)
            return


def changed(file: ReadFile, number: int, block_bytes: int) -> str:
    """Return the line for a block that is not what was written."""
    first = number * block_bytes
    return (
        f"{file.path}: bytes {first} to {min(first + block_bytes, file.size) - 1} changed since they were written, "
        "their CRC-32 differs; restore a copy, or preprocess again"
    )
