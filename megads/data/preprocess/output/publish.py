"""From finished parts to token files under their final names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megads.data.formats.checksums import checksums_of
from megads.data.formats.files import ReadFile
from megads.data.formats.writer import write_index
from megads.data.preprocess.output.journal import SUFFIXES, Point, sizes_at
from megads.data.preprocess.plan import Job, digest_of, key_of
from megads.data.preprocess.workers.messages import Ready
from megads.data.token_files.merge import copy_file
from megads.errors import DataError
from megads.storage.reading import read_json

MARKER = "publish"
"""File of the work folder that names what is whole and where it goes."""

_FINAL = (".bin", ".info.json", ".idx")
_BLOCK = 2**20  # numbers


@dataclass(frozen=True)
class Made:
    """One pair of token files."""

    prefix: str
    documents: int
    sequences: int
    tokens: int
    dtype: str


def part_folder(job: Job, part: int) -> Path:
    """Return the folder of a part."""
    return job.work / f"part-{part}"


def join_parts(job: Job, points: Sequence[Point], check: Callable[[], None]) -> None:
    """Append all parts to the first one, inside the kernel. Can be done again after it was interrupted.

    Args:
        job: what is made.
        points: the ends of the parts.
        check: called now and then; may raise to stop.
    """
    first = part_folder(job, 0)
    for (key, suffix), size in sizes_at(points[0]).items():
        with (first / f"{key}{suffix}").open("r+b", buffering=0) as target:
            target.truncate(size)
            target.seek(size)
            sequences = points[0].sequences[key]
            for part, point in enumerate(points[1:], start=1):
                path = part_folder(job, part) / f"{key}{suffix}"
                if suffix == ".doc":
                    _append_documents(path, target, sequences)
                    sequences += point.sequences[key]
                else:
                    _append(path, target, check)


def _append(path: Path, target: Any, check: Callable[[], None]) -> None:
    for _ in copy_file(ReadFile(path), target):
        check()


def _append_documents(path: Path, target: Any, sequences: int) -> None:
    with path.open("rb") as source:
        source.seek(8)
        while block := source.read(8 * _BLOCK):
            target.write((np.frombuffer(block, "<i8") + sequences).tobytes())


def complete(job: Job, ready: Ready, dtype: np.dtype[Any], total: Point, check: Callable[[], None]) -> list[Made]:
    """Write what is missing next to the joined tokens, and the marker: from here on nothing can be refused any more.

    ``check`` is called now and then and may raise to stop.

    Raises:
        DataError: there are no tokens.
        OSError: the disk is full.
    """
    from megads.data.formats.record import Record, write_record

    folder, made = part_folder(job, 0), []
    for place, key in enumerate(job.keys):
        tokens, sequences = total.num_bytes[place] // dtype.itemsize, total.sequences[place]
        made.append(Made(str(job.prefix(key)), total.documents, sequences, tokens, dtype.name))
        if not tokens:
            reason = (
                f"none of its {total.documents} documents has a token" if total.documents else "it has no documents"
            )
            raise DataError(f"--input: {reason} under the key {key!r}; nothing is written")
    for place, (key, each) in enumerate(zip(job.keys, made, strict=True)):
        lengths = np.memmap(folder / f"{place}.len", "<i4", "r")
        documents = np.memmap(folder / f"{place}.doc", "<i8", "r")
        write_index(folder / f"{place}.idx", job.impl, dtype, lengths, documents)
        spec = job.tokenizer
        record = Record(
            tokenizer=ready.fingerprint,
            tokenizer_type=spec.type,
            tokenizer_name=spec.model or spec.vocab_file,
            vocab_size=ready.vocab_size,
            eod=ready.eod,
            documents=each.documents,
            sequences=each.sequences,
            tokens=each.tokens,
            level=job.level,
            key=key,
            sources=tuple(source.path for source in job.inputs),
            checksums=checksums_of(
                folder / f"{place}.bin", folder / f"{place}.idx", threads=job.how.workers, check=check
            ),
        )
        write_record(folder / str(place), record)
        for suffix in (*SUFFIXES, ".idx"):
            _sync(folder / f"{place}{suffix}")
    _write_marker(job, made)
    return made


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
    _sync(job.work.parent)
    for path in job.work.iterdir():
        if path.name != MARKER:
            shutil.rmtree(path, ignore_errors=True)
    # The marker is the last to go: until then everything above can be done again.
    (job.work / MARKER).unlink()
    job.work.rmdir()
    return made, content["job"] == _name_of(job)


def is_complete(job: Job) -> bool:
    """Return whether an earlier run was stopped while it gave the files their names."""
    return (job.work / MARKER).exists()


def existing(job: Job) -> Path | None:
    """Return a file that is already there under a final name."""
    paths = [Path(f"{job.prefix(key)}{suffix}") for key in job.keys for suffix in (".idx", ".bin")]
    return next((path for path in paths if os.path.lexists(path)), None)


def _write_marker(job: Job, made: Sequence[Made]) -> None:
    temporary = job.work / f"{MARKER}.tmp"
    with temporary.open("w") as file:
        file.write(json.dumps({"job": _name_of(job), "made": [vars(each) for each in made]}))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(job.work / MARKER)
    _sync(job.work)


def _name_of(job: Job) -> str:
    return digest_of(key_of(job, repr(job.tokenizer), 0))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot flush folders
            os.fsync(handle)
    finally:
        os.close(handle)
