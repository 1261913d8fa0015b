"""Whether token files are valid: index, sizes, every token, and what their record says."""

from __future__ import annotations

import bisect
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megads.data.formats.files import BLOCK, ReadFile
from megads.data.formats.record import Checksums, Record, changed, file_problems, read_record
from megads.data.formats.token_file import TntDataset, TokenFile, open_dataset
from megads.errors import DataError

_TASK = 1 << 26  # tokens one thread looks at before it takes other work
_QUICK = 8  # blocks whose checksum is compared when the tokens are skipped
_STRETCH = 4096  # sequences of a large index that are looked at together
_ENTRY_BYTES = 20  # of a sequence and its document, about
_SAMPLED = 64  # documents whose last token is compared with the record's

Progress = Callable[[int, int], None]
"""Called with the bytes of tokens looked at, and their total."""


@dataclass
class Report:
    """What was found of one file."""

    prefix: str
    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    highest: int = -1  # token; -1: none was looked at
    record: Record | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Scan:
    """A stretch of tokens: its lowest, its highest, how many are beyond the vocabulary, and the first that is."""

    lowest: int
    highest: int
    wrong: int = 0
    first: int = -1  # position in the file
    value: int = 0  # of the first


def check(prefix: str, vocab_size: int | None = None) -> list[str]:
    """Return one line for each thing that is wrong with a token file; see :func:`check_all`."""
    return check_all([prefix], vocab_size)[0].problems


def check_all(
    prefixes: Sequence[str],
    vocab_size: int | None = None,
    *,
    fingerprint: str = "",
    quick: bool = False,
    threads: int = 2,
    progress: Progress | None = None,
) -> list[Report]:
    """Look at token files, several at once, and report of each, in order.

    Every number of the index, the sizes, every token id, and the record are looked at. Memory is a
    few MiB a thread.

    Args:
        prefixes: of the files.
        vocab_size: ids must be below; None: as the file's record says, else only not negative.
        fingerprint: of the tokenizer that the files should be made with; empty: any.
        quick: skip the tokens, but for a few blocks whose checksum is recorded.
        threads: how many read at once; they share the work of a large file.
        progress: called with how far it is.
    """
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        reports = list(pool.map(lambda prefix: _check_files(prefix, vocab_size, fingerprint, quick), prefixes))
        if quick:
            return reports
        tasks = [
            (report, start) for report in reports if not report.problems for start in range(0, report.tokens, _TASK)
        ]
        sizes = [min(_TASK, report.tokens - start) for report, start in tasks]
        done, total = 0, sum(sizes)
        found: dict[int, list[_Scan]] = {}
        scans = pool.map(lambda task: _scan_part(task[0], task[1], vocab_size), tasks)
        for (report, _), size, scan in zip(tasks, sizes, scans, strict=True):
            done += size
            if progress:
                progress(done, total)
            if isinstance(scan, str):
                report.problems.append(scan)
            else:
                found.setdefault(id(report), []).append(scan)
    for report in reports:
        _report_wrong_tokens(report, found.get(id(report), ()), vocab_size)
    return reports


def _check_files(prefix: str, vocab_size: int | None, fingerprint: str, quick: bool) -> Report:
    """Look at everything but the tokens."""
    report = Report(prefix)
    try:
        dataset = open_dataset(prefix, allow_empty=True)
        report.documents, report.sequences = dataset.num_documents, len(dataset)
        report.tokens = dataset.num_tokens
        report.problems += index_problems(dataset)
        report.record = read_record(prefix)
        if report.record and not report.problems:
            report.problems += _record_problems(dataset, report.record, vocab_size, fingerprint)
            report.problems += _checksum_problems(dataset, report.record, quick)
    except DataError as error:
        report.problems.append(str(error))
    return report


def _record_problems(dataset: TokenFile, record: Record, vocab_size: int | None, fingerprint: str) -> Iterator[str]:
    name = f"{dataset.prefix}.info.json"
    counts = {"documents": dataset.num_documents, "sequences": len(dataset), "tokens": dataset.num_tokens}
    for what, count in counts.items():
        if getattr(record, what) != count:
            yield f"{name}: says {getattr(record, what)} {what}, the files have {count}"
    if fingerprint and record.tokenizer != fingerprint:
        yield f"{name}: made with another tokenizer, {record.tokenizer_type} {record.tokenizer_name}"
    elif vocab_size is not None and record.vocab_size > vocab_size:
        yield f"{name}: made with a vocabulary of {record.vocab_size}, expected at most {vocab_size}"
    if record.eod is not None:
        yield from _end_problems(dataset, record.eod)


def _checksum_problems(dataset: TokenFile, record: Record, quick: bool) -> Iterator[str]:
    """Compare the index, and the tokens' number of checksums; the tokens themselves are compared when they are read."""
    if record.checksums:
        yield from file_problems(dataset.index_file, record.checksums)
        try:
            record.checksums.of(".bin", dataset.bin_file.size)
        except ValueError as error:
            yield f"{dataset.bin_file.path}: its record holds {error}; the two do not belong together"
            return
        if quick:
            yield from file_problems(dataset.bin_file, record.checksums, _QUICK)


def _end_problems(dataset: TokenFile, eod: int) -> Iterator[str]:
    """Look at the last token of some documents."""
    for document in sorted({int(each) for each in np.linspace(0, dataset.num_documents - 1, _SAMPLED)}):
        first, behind = dataset.document_row.read(document, document + 2).tolist()
        size = dataset.length_row[behind - 1] if behind > first else 0
        if size and (last := int(dataset.get(behind - 1, size - 1)[0])) != eod:
            yield f"{dataset.prefix}: document {document} ends with token {last}, its record says {eod}"
            return


def _limit(report: Report, vocab_size: int | None) -> int | None:
    return vocab_size if vocab_size is not None else report.record.vocab_size if report.record else None


def _scan_part(report: Report, start: int, vocab_size: int | None) -> _Scan | str:
    """Look at the tokens from ``start`` on; return what is wrong with the file itself as a text."""
    limit = _limit(report, vocab_size)
    try:
        dataset = open_dataset(report.prefix, allow_empty=True)
        sums = report.record.checksums if report.record else None
        return _join(_blocks(dataset, start, min(start + _TASK, dataset.num_tokens), limit, sums))
    except DataError as error:
        return str(error)


def _blocks(
    dataset: TokenFile, start: int, stop: int, limit: int | None, checksums: Checksums | None
) -> Iterator[_Scan]:
    # A block fits the processor's cache: it is read into it and looked at there.
    buffer: np.ndarray[Any, Any] = np.empty(BLOCK, dataset.dtype)
    signed = np.issubdtype(dataset.dtype, np.signedinteger)
    follow = _Follow(dataset.bin_file, checksums, start * dataset.dtype.itemsize) if checksums else None
    for begin in range(start, stop, BLOCK):
        block = buffer[: min(BLOCK, stop - begin)]
        dataset.bin_file.read_into(block, begin * dataset.dtype.itemsize)
        if follow:
            follow.add(block.data.cast("B"))
        low, high = int(block.min()) if signed else 0, int(block.max())
        if low >= 0 and (limit is None or high < limit):
            yield _Scan(low, high)
            continue
        wrong = np.flatnonzero((block < 0) | (block >= limit if limit is not None else False))
        at = int(wrong[0])
        yield _Scan(low, high, len(wrong), begin + at, int(block[at]))


class _Follow:
    """Compares the checksums of blocks while their bytes pass; ``at`` is where a block begins."""

    def __init__(self, file: ReadFile, checksums: Checksums, at: int):
        self._file, self._block = file, checksums.block_bytes
        self._expected = checksums.of(".bin", file.size)
        self._number, self._value, self._filled = at // self._block, 0, 0

    def add(self, view: memoryview) -> None:
        """Take the next bytes; DataError when a block is not what was written."""
        while view:
            left = min(self._block, self._file.size - self._number * self._block) - self._filled
            part = view[:left]
            self._value = zlib.crc32(part, self._value)
            self._filled, view = self._filled + len(part), view[len(part) :]
            if len(part) == left:
                if self._value != self._expected[self._number]:
                    raise DataError(changed(self._file, self._number, self._block))
                self._number, self._value, self._filled = self._number + 1, 0, 0


def _join(scans: Iterable[_Scan]) -> _Scan:
    lowest, highest, wrong, first, value = 0, -1, 0, -1, 0
    for scan in scans:
        lowest, highest = min(lowest, scan.lowest), max(highest, scan.highest)
        if scan.wrong and not wrong:
            first, value = scan.first, scan.value
        wrong += scan.wrong
    return _Scan(lowest, highest, wrong, first, value)


def _report_wrong_tokens(report: Report, scans: Iterable[_Scan], vocab_size: int | None) -> None:
    joined = _join(scans)
    report.highest = joined.highest
    if not joined.wrong:
        return
    limit = _limit(report, vocab_size)
    expected = f"0..{limit - 1}" if limit is not None else "0 or larger"
    sequence, position = _place(open_dataset(report.prefix), joined.first)
    report.problems.append(
        f"{report.prefix}.bin: {joined.wrong} tokens are not {expected}: the first is {joined.value}, at place "
        f"{position} of sequence {sequence}; the lowest is {joined.lowest}, the highest {joined.highest}"
    )


def _place(dataset: TokenFile, token: int) -> tuple[int, int]:
    """Return the sequence that holds a token of the file, and its place there."""
    start = token * dataset.dtype.itemsize // dataset.start_unit
    sequence = bisect.bisect_right(dataset.start_row, start, 0, len(dataset)) - 1
    return sequence, token - dataset.start_row[sequence] * dataset.start_unit // dataset.dtype.itemsize


def require_valid(dataset: TokenFile) -> None:
    """Refuse a file whose index is not valid.

    Raises:
        DataError: the first of :func:`index_problems`.
    """
    for problem in index_problems(dataset):
        raise DataError(f"{problem}; write the files again")


def index_problems(dataset: TokenFile, most_bytes: int | None = None) -> Iterator[str]:
    """Yield one line for each rule of the format that the index breaks, with the first place where it does.

    The rules: sequences have 0 or more tokens, lie back to back and fill the .bin file; the document
    index never decreases, and runs from 0 to the number of sequences (that, and the sizes of both
    files, was seen when the dataset was opened). The index is read in blocks, so memory stays small.

    Args:
        dataset: of the index.
        most_bytes: read about so many of a large index: stretches that are evenly spaced; None: all of it.

    Raises:
        DataError: a file was cut short meanwhile.
    """
    stretches = 0
    if most_bytes is not None and dataset.index_file.size > max(most_bytes, _STRETCH * _ENTRY_BYTES):
        stretches = max(2, most_bytes // (_STRETCH * _ENTRY_BYTES))
    end: int | None = 0
    for first, behind in _ranges(len(dataset), stretches):
        problem, end = _sequences_problem(dataset, first, behind, end if first == 0 or not stretches else None)
        if problem:
            yield problem
            break
    else:
        if not stretches:
            yield from _end_of_index_problems(dataset, end or 0)
    yield from _first_of(_documents_problem(dataset, *each) for each in _ranges(dataset.num_documents, stretches))
    if isinstance(dataset, TntDataset):
        sizes = len(dataset) + (not stretches)
        yield from _first_of(_dimensions_problem(dataset, *each) for each in _ranges(sizes, stretches))


def _ranges(count: int, stretches: int) -> Iterator[tuple[int, int]]:
    """Yield first and end of blocks that cover ``count`` numbers, or of some ``stretches`` of them."""
    size = _STRETCH if stretches else BLOCK
    firsts = np.linspace(0, max(0, count - size), stretches).astype(np.int64).tolist() if stretches else ()
    for first in firsts or range(0, count, size):
        yield first, min(first + size, count)


def _first_of(problems: Iterable[str]) -> Iterator[str]:
    yield from itertools.islice(filter(None, problems), 1)


def _sequences_problem(dataset: TokenFile, first: int, behind: int, begin: int | None) -> tuple[str, int]:
    """Return what is wrong with the lengths and starts of some sequences, empty when nothing is, and their end.

    They begin at the token ``begin``; None: where the index says.
    """
    name, scale = dataset.index_file.path, dataset.dtype.itemsize // dataset.start_unit
    most = dataset.bin_file.size // dataset.dtype.itemsize
    lengths, starts = dataset.length_row.read(first, behind), dataset.start_row.read(first, behind)
    if begin is None:
        begin = int(starts[0]) // scale
        if not 0 <= begin <= most:
            return f"{name}: sequence {first} starts at {starts[0]}, the .bin file ends at {most * scale}", 0
    # Lengths that no file has are reported first: their sums would not fit int64.
    if len(wrong := np.flatnonzero((lengths < 0) | (lengths > most - begin))):
        at = int(wrong[0])
        return f"{name}: sequence {first + at} has {lengths[at]} tokens, the .bin file has only {most}", 0
    ends = np.cumsum(lengths, dtype=np.int64) + begin
    expected = np.concatenate((np.array([begin]), ends[:-1])) * scale
    if len(wrong := np.flatnonzero(starts != expected)):
        at = int(wrong[0])
        why = f"but the one before it ends at {expected[at]}" if first + at else "expected 0"
        return f"{name}: sequence {first + at} starts at {starts[at]}, {why}", 0
    return "", int(ends[-1])


def _end_of_index_problems(dataset: TokenFile, total: int) -> Iterator[str]:
    most = dataset.bin_file.size // dataset.dtype.itemsize
    end = dataset.start_row[len(dataset)] if isinstance(dataset, TntDataset) else total
    if not total == most == end:
        yield (
            f"{dataset.index_file.path}: its sequences have {total} tokens and end at {end}, the .bin file has {most}"
        )


def _documents_problem(dataset: TokenFile, first: int, behind: int) -> str:
    """Return what is wrong with some entries of the document index, empty when nothing is."""
    block = dataset.document_row.read(first, behind + 1)
    # Compared, not subtracted: a difference may not fit its type.
    wrong = np.flatnonzero((block[1:] < block[:-1]) | (block[1:] > len(dataset)) | (block[:-1] < 0))
    if not len(wrong):
        return ""
    at = int(wrong[0])
    return (
        f"{dataset.index_file.path}: document {first + at} runs from sequence {block[at]} to {block[at + 1]}, "
        f"expected a start that is not lower and at most {len(dataset)}"
    )


def _dimensions_problem(dataset: TntDataset, first: int, behind: int) -> str:
    block = dataset.dim_row.read(first, behind)
    if not len(wrong := np.flatnonzero(block != np.arange(first, behind))):
        return ""
    at = int(wrong[0])
    return f"{dataset.index_file.path}: sequence {first + at} has its size at {block[at]}, expected {first + at}"
