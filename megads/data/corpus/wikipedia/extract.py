"""``megads corpus wikipedia``: a dump's pages as JSON lines, by several processes, from where a killed call stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TextIO

from megads.data.corpus.frame.step import dump
from megads.data.corpus.ordered import ordered_map
from megads.data.corpus.wikipedia.markup import CannotParse, load_library, text_of
from megads.data.corpus.wikipedia.pages import Dump, Page
from megads.data.preprocess.input.files import Source, read_pieces, unchanged
from megads.data.preprocess.plan import How, work_folder
from megads.data.preprocess.progress import Done, Meter
from megads.errors import DataError
from megads.storage.durable import sync, write_synced
from megads.storage.file_lock import take_lock
from megads.storage.open_file import FULL
from megads.storage.reading import read_json
from megads.text.plural import plural

_FORMAT = 1  # raised when work that an older version left behind cannot be resumed
_AT_ONCE, _PAGES = 1 << 18, 1 << 12  # bytes of markup, and pages, that a worker gets at once
_POINT = "point.json"
_LOCK_S = 3.0  # what is left of a run that was killed may need a moment to end


@dataclass(frozen=True)
class Extraction:
    """What is made of which dump."""

    source: Source
    output: str
    min_length: int = 0  # characters; a page with fewer is dropped
    how: How = field(default_factory=How)

    @property
    def report(self) -> str:
        """The file that says what was dropped, and why."""
        return f"{self.output}.report.json"

    @property
    def work(self) -> Path:
        """The hidden folder next to the output that holds everything until it is complete."""
        return work_folder(Path(self.output), "wikipedia")

    @property
    def digest(self) -> str:
        """A digest of everything that decides the output."""
        source = self.source
        key = [_FORMAT, os.path.abspath(source.path), source.size, source.mtime_ns, self.min_length]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


@dataclass
class _Point:
    """How far a call came; a killed one resumes here."""

    pages: int = 0
    size: int = 0  # bytes of the output
    text_bytes: int = 0  # of the markup
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Batch:
    """Pages that a worker gets at once."""

    pages: tuple[tuple[str, str, str, str], ...]  # id, URL, title, markup
    hidden: frozenset[str]  # names of namespaces
    counts: Counter[str]  # of pages that are dropped, or not: why
    num_pages: int  # with those that are dropped
    num_bytes: int
    used: int  # bytes of the dump that were read


def extract(job: Extraction, stream: TextIO) -> dict[str, object]:
    """Write a JSON line ``{id, url, title, text}`` for each article; return the report.

    Args:
        job: what to do.
        stream: for progress and notes.

    Raises:
        DataError: the dump is broken, or the output exists. Finished work is kept for the same command.
    """
    load_library()
    folder = Path(job.output).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lock = take_lock(folder / f".{Path(job.output).name}.lock", wait_s=_LOCK_S, temporary=True)
            if lock is None:
                raise DataError(f"{job.output}: another process is making it; wait, or use another output")
            stack.enter_context(lock)
            return _extract(job, stream)
    except OSError as error:
        cure = "free some space" if error.errno in FULL else "fix that, or use another output"
        reason = os.strerror(error.errno or 0).lower()
        raise DataError(f"{job.output}: cannot be written: {reason}; {cure}, then rerun the same command") from None


def _extract(job: Extraction, stream: TextIO) -> dict[str, object]:
    point = _read_point(job)
    existing = [path for path in (job.output, job.report) if os.path.lexists(path)]
    if point and not (job.work / "output").exists():
        # Killed between the last name and the end.
        if len(existing) == 2:
            shutil.rmtree(job.work)
            found: dict[str, object] = read_json(job.report)
            return found
        point = None
    if existing and not job.how.overwrite and not (point and existing == [job.report]):
        raise DataError(f"{existing[0]}: already exists; use another output, or --overwrite")
    job.work.mkdir(exist_ok=True)
    if point:
        stream.write(f"megads: resuming after {plural(point.pages, 'page', ',')} of an earlier call\n")
    else:
        point = _Point()
        (job.work / "output").write_bytes(b"")
    try:
        with open(job.work / "output", "r+b") as out:
            out.truncate(point.size)
            out.seek(point.size)
            _write(job, point, out, stream)
    except DataError:
        if not (job.work / _POINT).exists():
            shutil.rmtree(job.work)
        raise
    return _publish(job, point)


def _write(job: Extraction, point: _Point, out: IO[bytes], stream: TextIO) -> None:
    """Add the pages behind ``point`` to the output."""
    meter = Meter(stream, job.source.size, job.how.log_interval, has_tokens=False)
    meter.begin(Done(point.pages, point.text_bytes))
    batches = _batches(job.source, point.pages, job.how.block_bytes)
    saved = time.monotonic()
    for lines, batch, counts in ordered_map(partial(_lines, job.min_length), batches, job.how.workers):
        out.write(lines)
        point.pages += batch.num_pages
        point.size += len(lines)
        point.text_bytes += batch.num_bytes
        point.counts.update(counts)
        meter.show(Done(point.pages, point.text_bytes, 0, batch.used))
        if time.monotonic() - saved >= job.how.commit_s:
            _save_point(job, point, out)
            saved = time.monotonic()
    unchanged(job.source)
    _save_point(job, point, out)
    meter.clear()
    stream.write(f"megads: {meter.summary(Done(point.pages, point.text_bytes))}\n")


def _batches(source: Source, skipped: int, most: int) -> Iterator[_Batch]:
    """Yield the pages of a dump behind the first ``skipped``."""
    used = 0

    def pieces() -> Iterator[bytes]:
        nonlocal used
        for piece, now in read_pieces(source):
            used = now
            yield piece

    dump_file = Dump(source.path, pieces())
    pages: list[tuple[str, str, str, str]] = []
    counts: Counter[str] = Counter()
    count = size = 0

    def batch() -> _Batch:
        return _Batch(tuple(pages), frozenset(dump_file.site.hidden), counts, count, size, used)

    for number, page in enumerate(dump_file.pages()):
        if number < skipped:
            continue
        count, size = count + 1, size + len(page.markup.encode())
        if reason := _reason(page):
            counts[reason] += 1
        else:
            pages.append((page.id, dump_file.site.url(page.id), page.title, page.markup))
        if size >= min(most, _AT_ONCE) or count >= _PAGES:
            yield batch()
            pages, counts, count, size = [], Counter(), 0, 0
    if count:
        yield batch()


def _reason(page: Page) -> str:
    """Return why a page is no article, "" where it is one."""
    return "redirect" if page.is_redirect else "namespace" if page.namespace else ""


def _lines(min_length: int, batch: _Batch) -> tuple[bytes, _Batch, Counter[str]]:
    """Return the lines of a batch, the batch without its pages, and what was counted."""
    lines, counts = [], Counter(batch.counts)
    for number, url, title, markup in batch.pages:
        try:
            text = text_of(markup, batch.hidden)
        except CannotParse:
            counts["markup"] += 1
            continue
        if not text:
            counts["empty"] += 1
        elif len(text) < min_length:
            counts["short"] += 1
        else:
            lines.append(dump({"id": number, "url": url, "title": title, "text": text}) + b"\n")
            counts["kept"] += 1
    done = _Batch((), frozenset(), Counter(), batch.num_pages, batch.num_bytes, batch.used)
    return b"".join(lines), done, counts


def _save_point(job: Extraction, point: _Point, out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())
    content = {"digest": job.digest, **vars(point)}
    temporary = job.work / f"{_POINT}.tmp"
    write_synced(temporary, json.dumps(content).encode())
    temporary.replace(job.work / _POINT)
    sync(job.work)


def _read_point(job: Extraction) -> _Point | None:
    """Return where an earlier call stopped; None where it was another one, or its files are damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(job.work / _POINT)
        if content["digest"] == job.digest and job.source.kind != "pipe":
            output = job.work / "output"
            point = _Point(content["pages"], content["size"], content["text_bytes"], Counter(content["counts"]))
            if not output.exists() or output.stat().st_size >= point.size:
                return point
    return None


def _publish(job: Extraction, point: _Point) -> dict[str, object]:
    """Give the output its name, the report first; remove the work folder."""
    counts = dict(point.counts)
    kept = counts.pop("kept", 0)
    report: dict[str, object] = {
        "command": "wikipedia",
        "input": {"path": job.source.path, "bytes": job.source.size},
        "output": job.output,
        "options": {"min_length": job.min_length},
        "pages": {"read": point.pages, "kept": kept, "dropped": point.pages - kept},
        "reasons": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "bytes": {"read": point.text_bytes, "written": point.size},
    }
    temporary = job.work / "report.json"
    write_synced(temporary, (json.dumps(report, indent=2) + "\n").encode())
    temporary.replace(job.report)
    (job.work / "output").replace(job.output)
    sync(Path(job.output).parent)
    shutil.rmtree(job.work)
    return report
