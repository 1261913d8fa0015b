"""What is known of a token file beyond Megatron's format: ``<prefix>.info.json``, next to ``.bin`` and ``.idx``.

It holds the tokenizer, the counts, and the CRC-32 of every 16 MiB of both files.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megads.config.run_folder import write_whole
from megads.data.formats.files import ReadFile
from megads.data.formats.prefix import strip_suffix
from megads.errors import ConfigError, DataError
from megads.storage.checksums import NO_CRC, count_blocks, is_sealed, parse_digits, seal
from megads.storage.reading import parse_json, read_bytes

FORMAT = 1
BLOCK = 1 << 24
"""Bytes that share a checksum."""

RECORD_SUFFIX = ".info.json"
_LARGEST = 1 << 26  # bytes; hundreds of thousands of input files
_PIECE = 1 << 21  # bytes read at a time
_COUNTS = ("vocab_size", "documents", "sequences", "tokens")


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


@dataclass(frozen=True)
class Record:
    """How a token file was made. Files of other tools have none, and are used as they are."""

    tokenizer: str  # identity of the text -> ids function, see Tokenizer.fingerprint
    tokenizer_type: str  # as TOKENIZER_TYPE, for people
    tokenizer_name: str  # file or folder it was read from, for people
    vocab_size: int  # largest possible id + 1
    eod: int | None  # id at the end of documents; None: nothing was appended
    documents: int
    sequences: int
    tokens: int
    level: str = "document"  # "sentence": a document is several sequences
    key: str = "text"  # of the JSON objects
    sources: tuple[str, ...] = field(default=())  # input files, for people
    checksums: Checksums | None = None  # of both files; None: not known


def record_path(prefix: str | Path) -> Path:
    """Return the path of the record next to the token file ``prefix``."""
    return Path(strip_suffix(str(prefix)) + RECORD_SUFFIX)


def write_record(prefix: str | Path, record: Record) -> None:
    """Write ``record`` next to the token file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    path = record_path(prefix)
    try:
        write_whole(path, record_text(record))
    except ConfigError as error:
        reason = str(error).partition(": ")[2].partition(";")[0]
        raise DataError(f"{path}: {reason}; the data is complete, but nothing says which tokenizer made it") from None


def record_text(record: Record) -> str:
    """Return the content of the file, with its own CRC-32: of the text with eight zeros in its place."""
    return seal(json.dumps({"format": FORMAT, "crc32": NO_CRC, **asdict(record)}, indent=2) + "\n")


def read_record(prefix: str | Path) -> Record | None:
    """Return the record of a token file, None where there is none.

    Raises:
        DataError: it is there and cannot be understood.
    """
    path = record_path(prefix)
    try:
        raw = read_bytes(path, _LARGEST)
        content = parse_json(raw)
        version, crc = content.pop("format"), content.pop("crc32", None)
        if version == FORMAT:
            if crc is not None and not is_sealed(raw, crc):
                raise ValueError("it changed since it was written, its CRC-32 differs")
            return _record(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = str(getattr(error, "strerror", None) or error)
        reason = text if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {text}"
        raise DataError(
            f"{path}: is not a valid record ({reason:.200}); remove it to use the data without a "
            "record, or preprocess again"
        ) from None
    raise DataError(f"{path}: format {version!r:.40}, expected {FORMAT}; it was made by a newer megads")


def _record(content: dict[str, Any]) -> Record:
    """Return the record, whose values have the types they should have."""
    sources, checksums = content.pop("sources", []), content.pop("checksums", None)
    record = Record(
        **content, sources=tuple(sources), checksums=None if checksums is None else Checksums.parse(checksums)
    )
    for name, value in asdict(record).items():
        if name == "checksums":
            continue
        if name == "sources":
            right = all(isinstance(each, str) for each in value)
        elif name in _COUNTS:
            right = type(value) is int and value >= 0
        else:
            right = value is None or type(value) is int if name == "eod" else isinstance(value, str)
        if not right:
            raise TypeError(f"{name} is {value!r:.40}")
    return record


def checksums_of(
    bin_path: Path, idx_path: Path, *, threads: int = 1, check: Callable[[], None] = lambda: None
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
            values = pool.map(lambda task: crc_of(task[0], task[1], BLOCK), tasks)
            for (file, _), value in zip(tasks, values, strict=True):
                digits[id(file)] += f"{value:08x}"
                check()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
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
