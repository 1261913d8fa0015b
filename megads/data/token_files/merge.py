"""Join token files into one, as if their inputs had been preprocessed end to end."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from megads.data.formats.files import NewFiles, ReadFile
from megads.data.formats.prefix import strip_suffix
from megads.data.formats.record import RECORD_SUFFIX, Record, checksums_of, file_problems, read_record, record_text
from megads.data.formats.token_file import IndexedDataset, TokenFile, open_dataset
from megads.data.formats.writer import IndexContent, Numbers, write_pieces
from megads.data.token_files.scan import require_valid
from megads.errors import DataError

_UNSUPPORTED = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
_THREADS = 2  # that make checksums
_CHUNK = 1 << 28  # bytes copied between two reports of progress
_PIECE = 1 << 24  # bytes copied at a time where the kernel does not

Progress = Callable[[int, int], None]
"""Called with the bytes copied and their total."""


@dataclass(frozen=True)
class Merged:
    """What was written."""

    documents: int
    sequences: int
    tokens: int
    note: str  # why there is no record; empty where there is one


@dataclass(frozen=True)
class _Part:
    """One input as it was when it was looked at; it is opened again whenever it is read."""

    prefix: str
    impl: str
    dtype: np.dtype[Any]
    sequences: int
    documents: int
    tokens: int
    has_modes: bool
    state: tuple[int, ...]  # changes when somebody writes to a file

    def open(self) -> TokenFile:
        dataset = open_dataset(self.prefix, allow_empty=True)
        if _state(dataset) != self.state:
            raise DataError(f"{self.prefix}: changed while it was merged; rerun")
        return dataset


def merge(prefixes: Sequence[str], output: str, *, force: bool = False, progress: Progress | None = None) -> Merged:
    """Write the documents of ``prefixes``, in that order, as ``<output>.bin`` and ``.idx``.

    The files are those that preprocessing the concatenated inputs would have written. Both appear at
    the end, or neither. Tokens are copied by the kernel; memory does not depend on sizes or counts.

    Args:
        prefixes: of the inputs, at least one; the same one may come several times.
        output: prefix of the result; none of the inputs.
        force: also join files made with different tokenizers; the result has no record then.
        progress: called with how far it is.

    Raises:
        DataError: an input is missing or broken, they differ in format, type of tokens or
            tokenizer, or the output is an input or cannot be written.
    """
    output = strip_suffix(output)
    if os.path.basename(output) in ("", ".", ".."):
        raise DataError(
            f"--output-prefix {output!r}: names no file; use a name such as {os.path.join(output, 'merged')}"
        )
    parts = [_open_part(strip_suffix(prefix)) for prefix in prefixes]
    if not parts:
        raise DataError(f"{output}: nothing to merge; name at least one prefix")
    _check(parts, output)
    record, note = _merge_records([part.prefix for part in parts], force)
    _check_space(Path(output), sum(part.tokens * part.dtype.itemsize for part in parts))
    # The record gets its name with the files it describes: somebody else may write the same output meanwhile.
    files = NewFiles(output, (".bin", RECORD_SUFFIX, ".idx") if record else (".bin", ".idx"))
    try:
        with files.guard():
            _copy_tokens(parts, files[".bin"], progress)
            write_pieces(files[".idx"], parts[0].impl, _content(parts))
            if record:
                for suffix in (".bin", ".idx"):
                    files[suffix].flush()
                sums = checksums_of(files.path(".bin"), files.path(".idx"), threads=_THREADS)
                files[RECORD_SUFFIX].write(record_text(replace(record, checksums=sums)).encode())
                _require_unchanged(parts)
        files.publish(RECORD_SUFFIX)
    finally:
        files.drop()
    return Merged(
        documents=sum(part.documents for part in parts),
        sequences=sum(part.sequences for part in parts),
        tokens=sum(part.tokens for part in parts),
        note=note,
    )


def prefixes_in(folder: Path) -> list[str]:
    """Return the prefixes of all token files in a folder, sorted.

    Raises:
        DataError: it is not a folder, has none, or has one file of a pair only.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith((".bin", ".idx")))
    except OSError as error:
        raise DataError(f"{folder}: {os.strerror(error.errno or 0).lower()}; use a folder with token files") from None
    found = sorted({name[:-4] for name in names})
    if not found:
        raise DataError(f"{folder}: has no .bin and .idx files; use a folder with token files")
    for stem in found:
        for name in (stem + ".bin", stem + ".idx"):
            if name not in names:
                raise DataError(f"{folder / name}: is missing; remove its partner, or name the prefixes yourself")
    return [str(folder / stem) for stem in found]


def _open_part(prefix: str) -> _Part:
    dataset = open_dataset(prefix, allow_empty=True)
    require_valid(dataset)
    modes = isinstance(dataset, IndexedDataset) and dataset.mode_row is not None
    state, counts = _state(dataset), (len(dataset), dataset.num_documents, dataset.num_tokens)
    return _Part(prefix, dataset.impl, dataset.dtype, *counts, modes, state)


def _state(dataset: TokenFile) -> tuple[int, ...]:
    found = [os.fstat(file.fileno()) for file in (dataset.bin_file, dataset.index_file)]
    return tuple(number for each in found for number in (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns))


def _check(parts: Sequence[_Part], output: str) -> None:
    first = parts[0]
    filled = [part for part in parts if part.sequences]
    for part in parts:
        if part.impl != first.impl:
            raise DataError(
                f"{part.prefix}: is a {part.impl} file but {first.prefix} is {first.impl}; preprocess one of them again"
            )
        if part.dtype != first.dtype:
            raise DataError(
                f"{part.prefix}: holds {part.dtype} tokens but {first.prefix} {first.dtype}; their "
                "vocabulary sizes differ; preprocess one of them again"
            )
        if part.sequences and part.has_modes != filled[0].has_modes:
            raise DataError(
                f"{part.prefix}: only one of it and {filled[0].prefix} is multimodal; merge such files alone"
            )
        for suffix in (".bin", ".idx"):
            with contextlib.suppress(OSError):
                if os.path.samefile(part.prefix + suffix, output + suffix):
                    raise DataError(f"{output}{suffix}: is an input, too; use another output prefix")


def _check_space(output: Path, size: int) -> None:
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(output.parent).free
        if size > free:
            raise DataError(
                f"{output}: needs {size / 2**30:.3g} GiB but its disk has {free / 2**30:.3g} GiB; free some space or "
                "use another folder"
            )


def _merge_records(prefixes: Sequence[str], force: bool) -> tuple[Record | None, str]:
    """Return the record of the whole, or None and why."""
    found = [(prefix, read_record(prefix)) for prefix in prefixes]
    known = [(prefix, record) for prefix, record in found if record is not None]
    same = ("tokenizer", "vocab_size", "eod", "level")
    for prefix, record in known:
        first_prefix, first = known[0]
        differing = [name for name in same if getattr(record, name) != getattr(first, name)]
        if differing and not force:
            values = ", ".join(f"{name} {getattr(record, name)} and {getattr(first, name)}" for name in differing)
            raise DataError(
                f"{prefix}: was made with other options than {first_prefix} ({values}); preprocess one of them "
                "again, or --force to join them without a record"
            )
        if differing:
            return None, f"no record: {prefix} and {first_prefix} were made with different options"
    if len(known) < len(found):
        missing = next(prefix for prefix, record in found if record is None)
        return None, f"no record: {missing} has none" if known else ""
    return reduce(_add_records, [record for _, record in known]), ""


def _add_records(left: Record, right: Record) -> Record:
    return replace(
        left,
        documents=left.documents + right.documents,
        sequences=left.sequences + right.sequences,
        tokens=left.tokens + right.tokens,
        key=left.key if left.key == right.key else f"{left.key},{right.key}",
        sources=tuple(dict.fromkeys((*left.sources, *right.sources))),
    )


def _require_unchanged(parts: Sequence[_Part]) -> None:
    """Refuse inputs that are not what their records say: the checksums of the result would hide it."""
    for prefix in dict.fromkeys(part.prefix for part in parts):
        dataset, record = open_dataset(prefix, allow_empty=True), read_record(prefix)
        if record is None or record.checksums is None:
            continue
        for file in (dataset.index_file, dataset.bin_file):
            for problem in file_problems(file, record.checksums):
                raise DataError(problem)


def _content(parts: Sequence[_Part]) -> IndexContent:
    def lengths() -> Iterator[Numbers]:
        for part in parts:
            yield from part.open().length_row.blocks()

    def documents() -> Iterator[Numbers]:
        yield np.zeros(1, np.int64)
        done = 0
        for part in parts:
            for block in part.open().document_row.blocks(begin=1):
                yield block + done
            done += part.sequences

    def modes() -> Iterator[Numbers]:
        for part in parts:
            dataset = part.open()
            if isinstance(dataset, IndexedDataset) and dataset.mode_row:
                yield from dataset.mode_row.blocks()

    entries = 1 + sum(part.documents for part in parts)
    has_modes = any(part.has_modes for part in parts)
    sequences = sum(part.sequences for part in parts)
    return IndexContent(parts[0].dtype, sequences, entries, lengths, documents, modes if has_modes else None)


def _copy_tokens(parts: Sequence[_Part], target: BinaryIO, progress: Progress | None) -> None:
    total = sum(part.tokens * part.dtype.itemsize for part in parts)
    done = 0
    for part in parts:
        source = part.open().bin_file
        for copied in copy_file(source, target):
            done += copied
            if progress:
                progress(done, total)


def copy_file(source: ReadFile, target: BinaryIO) -> Iterator[int]:
    """Append all of ``source`` to ``target``, which is unbuffered or flushed; yield after each piece its bytes.

    Raises:
        DataError: the source has become shorter.
        OSError: the target cannot take it.
    """
    target.flush()
    done, by_kernel = 0, hasattr(os, "copy_file_range")
    while done < source.size:
        copied, count = 0, min(_CHUNK, source.size - done)
        if by_kernel:
            try:
                copied = os.copy_file_range(source.fileno(), target.fileno(), count, done)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            by_kernel = copied > 0  # some file systems copy nothing instead of refusing
        if not by_kernel:
            copied = os.write(target.fileno(), source.bytes(min(count, _PIECE), done))
        done += copied
        yield copied
