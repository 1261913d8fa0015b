"""The output: a part and the journal by which a killed run resumes, then token files under their final names.

Folder of a part::

    journal     one JSON object a line: what is made here, then each point from which to resume
    <k>.bin     tokens of key number k
    <k>.len     int32, tokens of each sequence
    <k>.doc     int64, 0 and then the number of sequences up to the end of each document

A part of another kind (``megads corpus``) has files of bytes alone, ``<k>.bin``: its points count no sequences.
What lies behind the last point was written by a run that was killed before it noted so; it is cut off.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from megads.data.formats.files import ReadFile
from megads.data.formats.record import checksums_of
from megads.data.formats.writer import write_index
from megads.data.preprocess.input.blocks import Position
from megads.data.preprocess.plan import Job, Work, digest_of
from megads.data.preprocess.workers.pool import Answer, Encoded, Ready
from megads.data.token_files.merge import copy_file
from megads.errors import DataError
from megads.storage.durable import sync, write_synced
from megads.storage.reading import parse_json, read_bytes, read_json

JOURNAL = "journal"
SUFFIXES = (".bin", ".len", ".doc")
MARKER = "publish"
"""File of the work folder that names what is whole and where it goes."""
_MOST = 1 << 30  # bytes of a journal
_BEGIN = Position()
_FINAL = (".bin", ".info.json", ".idx")
_BLOCK = 2**20  # numbers


@dataclass(frozen=True)
class Point:
    """How far a part is."""

    position: Position = _BEGIN
    lines: int = 0  # of the position's segment, before it
    documents: int = 0
    text_bytes: int = 0
    used: int = 0  # bytes read of the input, as it is on disk
    bad: int = 0  # lines
    bad_lines: tuple[str, ...] = ()  # the first few
    num_bytes: tuple[int, ...] = ()  # of each .bin
    sequences: tuple[int, ...] = ()  # of each .bin of tokens
    counts: dict[str, int] = field(default_factory=dict)  # whatever else is counted
    is_done: bool = False


class PartFiles:
    """The files of a part in ``folder``, opened where a run with the same ``digest`` left them, else made again."""

    def __init__(self, folder: Path, digest: str, begin: Point):
        self.folder, self._digest, self._begin = folder, digest, begin
        self._thread = ThreadPoolExecutor(1)
        self._write: Future[None] | None = None  # of a point that is on its way to the disk
        found = read_point(folder, digest, begin)
        if found is None:
            self._make()
        self.point = found or begin  # from which to resume
        self._last = self.point
        self._cut()
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND)
        self._open: list[BinaryIO] = []
        for key, suffix in sizes_at(begin):
            self._open.append((folder / f"{key}{suffix}").open("ab", buffering=2**16))

    @property
    def bins(self) -> tuple[str, ...]:
        """Paths of the files that workers write."""
        return tuple(str(self.folder / f"{key}.bin") for key in range(len(self._begin.num_bytes)))

    def add(self, answer: Answer | None, point: Point) -> None:
        """Add the sequences of a block whose bytes are written; ``point`` is behind it."""
        for key, output in enumerate(answer.outputs if isinstance(answer, Encoded) else ()):
            self._open[3 * key + 1].write(output.lengths.astype("<i4", copy=False).tobytes())
            ends = np.cumsum(output.sequences, dtype="<i8") + self.point.sequences[key]
            self._open[3 * key + 2].write(ends.tobytes())
        self.point = point

    def commit(self, *, wait: bool = False) -> None:
        """Flush and note the point, else OSError; without ``wait`` in a thread, unless another one is on its way."""
        if self._write is not None:
            if not self._write.done() and not wait:
                return
            last, self._write = self._write, None
            last.result()
        if self.point == self._last:
            return
        for file in self._open:
            file.flush()
        self._last = self.point
        self._write = self._thread.submit(self._write_point, self.point)
        if wait:
            self._write.result()

    def close(self) -> None:
        """Close the files."""
        self._thread.shutdown()
        for file in self._open:
            try:
                file.close()
            except OSError:
                file.raw.close()  # type: ignore[attr-defined]  # what is lost lies behind the last point
        os.close(self._journal)

    def _write_point(self, point: Point) -> None:
        """Flush the data first: a point must never be on the disk before what it is about."""
        for file in self._open:
            os.fdatasync(file.fileno())
        os.write(self._journal, (json.dumps(asdict(point)) + "\n").encode())
        os.fdatasync(self._journal)

    def _make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for (key, suffix), size in sizes_at(self._begin).items():
            (self.folder / f"{key}{suffix}").write_bytes(bytes(size))
        # Last: a folder with a journal has its files.
        (self.folder / JOURNAL).write_text(json.dumps({"digest": self._digest}) + "\n")

    def _cut(self) -> None:
        for (key, suffix), size in sizes_at(self.point).items():
            os.truncate(self.folder / f"{key}{suffix}", size)
        # A line that was cut short must not swallow the next one.
        journal = self.folder / JOURNAL
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)


def sizes_at(point: Point) -> dict[tuple[int, str], int]:
    """Return the size in bytes of each file at ``point``."""
    if not point.sequences:
        return {(key, ".bin"): size for key, size in enumerate(point.num_bytes)}
    result = {}
    for key, (num_bytes, sequences) in enumerate(zip(point.num_bytes, point.sequences, strict=True)):
        sizes = (num_bytes, 4 * sequences, 8 * (point.documents + 1))
        result.update({(key, suffix): size for suffix, size in zip(SUFFIXES, sizes, strict=True)})
    return result


def beginning(keys: int) -> Point:
    """Return the first point of a part of token files."""
    return Point(num_bytes=(0,) * keys, sequences=(0,) * keys)


def read_point(folder: Path, digest: str, begin: Point) -> Point | None:
    """Return the last point of a part that begins at ``begin``, None where there is none that ``digest`` made."""
    try:
        lines = read_bytes(folder / JOURNAL, _MOST).split(b"\n")[:-1]
        if parse_json(lines[0]) != {"digest": digest}:
            return None
        point = begin
        if len(lines) > 1:
            content = parse_json(lines[-1])
            tuples = {name: tuple(content[name]) for name in ("bad_lines", "num_bytes", "sequences")}
            point = Point(**{**content, **tuples, "position": Position(**content["position"])})
        sizes = [((folder / f"{key}{suffix}").stat().st_size, size) for (key, suffix), size in sizes_at(point).items()]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return point if all(found >= size for found, size in sizes) else None


@dataclass(frozen=True)
class Made:
    """One pair of token files."""

    prefix: str
    documents: int
    sequences: int
    tokens: int
    dtype: str


def part_folder(job: Work, part: int) -> Path:
    """Return the folder of a part."""
    return job.work / f"part-{part}"


def join_parts(job: Work, points: Sequence[Point], check: Callable[[], None]) -> None:
    """Append all parts, which end at ``points``, to the first one, inside the kernel.

    Can be done again after it was interrupted. ``check`` is called now and then; it may raise to stop.
    """
    first = part_folder(job, 0)
    for (key, suffix), size in sizes_at(points[0]).items():
        with (first / f"{key}{suffix}").open("r+b", buffering=0) as target:
            target.truncate(size)
            target.seek(size)
            sequences = points[0].sequences[key] if suffix == ".doc" else 0
            for part, point in enumerate(points[1:], start=1):
                path = part_folder(job, part) / f"{key}{suffix}"
                if suffix == ".doc":
                    _append_documents(path, target, sequences)
                    sequences += point.sequences[key]
                    continue
                for _ in copy_file(ReadFile(path), target):
                    check()


def _append_documents(path: Path, target: Any, sequences: int) -> None:
    with path.open("rb") as source:
        source.seek(8)
        while block := source.read(8 * _BLOCK):
            target.write((np.frombuffer(block, "<i8") + sequences).tobytes())


def complete(job: Job, ready: Ready, dtype: np.dtype[Any], total: Point, check: Callable[[], None]) -> None:
    """Write what is missing next to the joined tokens, and the marker: from here on nothing can be refused any more.

    ``check`` is called now and then and may raise to stop.

    Raises:
        DataError: there are no tokens.
        OSError: the disk is full or fails.
    """
    from megads.data.formats.record import Record, write_record

    for key, num_bytes in zip(job.keys, total.num_bytes, strict=True):
        if not num_bytes:
            reason = (
                f"none of its {total.documents} documents has a token" if total.documents else "it has no documents"
            )
            raise DataError(f"--input: {reason} under the key {key!r}; nothing is written")
    folder, spec, made = part_folder(job, 0), job.tokenizer, []
    for place, key in enumerate(job.keys):
        lengths = np.memmap(folder / f"{place}.len", "<i4", "r")
        documents = np.memmap(folder / f"{place}.doc", "<i8", "r")
        write_index(folder / f"{place}.idx", job.impl, dtype, lengths, documents)
        record = Record(
            tokenizer=ready.fingerprint,
            tokenizer_type=spec.type,
            tokenizer_name=spec.model or spec.vocab_file,
            vocab_size=ready.vocab_size,
            eod=ready.eod,
            documents=total.documents,
            sequences=total.sequences[place],
            tokens=total.num_bytes[place] // dtype.itemsize,
            level=job.level,
            key=key,
            sources=tuple(source.path for source in job.inputs),
            checksums=checksums_of(
                folder / f"{place}.bin", folder / f"{place}.idx", threads=job.how.workers, check=check
            ),
        )
        write_record(folder / str(place), record)
        made.append(Made(str(job.prefix(key)), record.documents, record.sequences, record.tokens, dtype.name))
        for suffix in (*SUFFIXES, ".idx"):
            sync(folder / f"{place}{suffix}")
    temporary = job.work / f"{MARKER}.tmp"
    content = {"job": _digest_of(job), "made": [vars(each) for each in made]}
    write_synced(temporary, json.dumps(content).encode())
    temporary.replace(job.work / MARKER)
    sync(job.work)


def publish(job: Job) -> tuple[list[Made], bool]:
    """Give what :func:`complete` finished its final names, and remove the work folder; can be done again.

    Returns:
        What there is now, and whether this job made it.
    """
    content = read_json(job.work / MARKER)
    made = [Made(**each) for each in content["made"]]
    for place, each in enumerate(made):
        sources = {suffix: part_folder(job, 0) / f"{place}{suffix}" for suffix in _FINAL}
        if sources[".bin"].exists():
            # An index is only ever seen next to the tokens it describes.
            Path(each.prefix + ".idx").unlink(missing_ok=True)
        for suffix, source in sources.items():
            if source.exists():
                source.replace(each.prefix + suffix)
    sync(job.work.parent)
    for path in job.work.iterdir():
        if path.name != MARKER:
            shutil.rmtree(path, ignore_errors=True)
    # The marker is the last to go: until then everything above can be done again.
    (job.work / MARKER).unlink()
    job.work.rmdir()
    return made, content["job"] == _digest_of(job)


def is_complete(job: Work) -> bool:
    """Return whether an earlier run was stopped while it gave the files their names."""
    return (job.work / MARKER).exists()


def _digest_of(job: Job) -> str:
    return digest_of(job, repr(job.tokenizer), 0)
