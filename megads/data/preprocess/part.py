"""Make one part of the output: give blocks to workers, put what they made in input order, note each point."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from megads.data.preprocess.input.blocks import Blocks, Position
from megads.data.preprocess.input.files import STDIN
from megads.data.preprocess.input.ranges import count_lines
from megads.data.preprocess.output import PartFiles, Point
from megads.data.preprocess.plan import Segment, Work
from megads.data.preprocess.workers.pool import Answer, Block, Failed, Pool, Write
from megads.errors import DataError, MegadsError
from megads.storage.open_file import FULL

NAMED = 5
"""Bad lines that are named."""

_AHEAD = 4
"""Blocks for each worker between the one that is finished next and the last one given away."""

_TICK_S = 0.2


class Stopped(Exception):
    """A signal asked the process to end."""

    def __init__(self, number: int):
        super().__init__(f"signal {number}")
        self.number = number


def make_part(
    job: Work,
    segments: Sequence[Segment],
    files: PartFiles,
    pool: Pool,
    tick: Callable[[Point], None],
    report: Callable[[str], None],
) -> None:
    """Fill ``files``, which are where an earlier run left them, with the documents of ``segments``.

    Args:
        job: what to do.
        segments: the stretch of the input, in order.
        files: of the part.
        pool: workers that have begun.
        tick: called several times a second with the point reached; may raise to stop.
        report: takes a line for the user.

    Raises:
        DataError: the input is broken or holds too many bad lines; the output cannot be written.
    """
    if files.point.is_done:
        return
    blocks = Blocks(job.inputs, segments, files.point.position, job.how.block_bytes)
    flow = _Flow(job, segments, files, pool, report)
    try:
        flow.run(blocks, tick)
        files.add(None, replace(files.point, is_done=True))
    finally:
        blocks.close()
        # What is finished is not lost, whatever happened; if the disk is full the last point stays.
        with suppress(OSError):
            files.commit(wait=True)
    files.commit(wait=True)


@dataclass
class _Flight:
    """A block on its way."""

    block: Block
    worker: int
    answer: Answer | Failed | None = None
    point: Point | None = None  # behind it, once its bytes have their place
    is_written: bool = False


class _Flow:
    """Blocks are given to a worker, made, placed in input order, written, and done in input order."""

    def __init__(
        self, job: Work, segments: Sequence[Segment], files: PartFiles, pool: Pool, report: Callable[[str], None]
    ):
        self._job, self._segments, self._files, self._pool, self._report = job, segments, files, pool, report
        sizes = [job.inputs[each.source].size if each.stop < 0 else each.stop - each.start for each in segments]
        self._used_before = [0, *itertools.accumulate(sizes)]
        self._flights: dict[int, _Flight] = {}
        self._busy = [0] * len(pool)  # blocks that a worker has and did not answer yet
        self._next: Block | None = None  # read, and no worker is free for it
        self._given = self._placed = self._done = 0  # number of the next block in each state
        self._point = files.point  # behind the blocks that have their place
        self._notes: set[str] = set()

    def run(self, blocks: Blocks, tick: Callable[[Point], None]) -> None:
        """Handle all blocks."""
        committed = ticked = time.monotonic()
        while self._give(blocks):
            bells = () if blocks.is_done or self._next or not self._has_room() else (blocks.bell,)
            for worker, message in self._pool.receive(_TICK_S, *bells):
                self._receive(worker, message)
            now = time.monotonic()
            if now - ticked >= _TICK_S:
                ticked = now
                tick(self._files.point)
            if now - committed >= self._job.how.commit_s:
                committed = now
                self._files.commit()
        tick(self._files.point)

    def _has_room(self) -> bool:
        return self._given - self._done < _AHEAD * len(self._pool)

    def _give(self, blocks: Blocks) -> bool:
        """Give blocks away while there are workers for them; return whether anything is left to wait for."""
        while self._has_room():
            block = self._next or blocks.next()
            if block is None:
                break
            worker = min(range(len(self._busy)), key=self._busy.__getitem__)
            # With one block in reserve a worker never waits. A block that carries its text is sent only to
            # a worker that listens: two processes that send each other much at once wait forever.
            if self._busy[worker] >= (2 if block.data is None else 1):
                self._next = block
                break
            self._next = None
            self._flights[block.number] = _Flight(replace(block, data=None), worker)
            self._busy[worker] += 1
            self._given = block.number + 1
            self._pool.send(worker, block)
        return not blocks.is_done or self._next is not None or self._done < self._given

    def _receive(self, worker: int, message: Any) -> None:
        if isinstance(message, Write):
            self._flights[message.number].is_written = True
            self._finish()
        elif isinstance(message, Answer) or (isinstance(message, Failed) and message.number in self._flights):
            self._busy[worker] -= 1
            self._flights[message.number].answer = message
            self._place()
        else:
            raise self._explained(message.error)

    def _place(self) -> None:
        """Say where the bytes of the next blocks belong. Errors come up here: the first one of the input wins."""
        while (flight := self._flights.get(self._placed)) is not None and flight.answer is not None:
            answer, block, before = flight.answer, flight.block, self._point
            lines = before.lines if block.segment == before.position.segment else 0
            if isinstance(answer, Failed):
                raise self._explained(answer.error, self._where(block, lines + answer.line) if answer.line >= 0 else "")
            flight.point = self._point = self._behind(block, answer, lines)
            self._placed += 1
            self._pool.send(flight.worker, Write(block.number, before.num_bytes, before.documents))

    def _behind(self, block: Block, answer: Answer, lines: int) -> Point:
        """Return the point behind a block; DataError where there are more bad lines than allowed."""
        before = self._point
        if answer.note and answer.note not in self._notes:
            self._notes.add(answer.note)
            self._report(answer.note)
        bad_lines, limit = list(before.bad_lines), self._job.how.max_bad_lines
        for count, (index, reason) in enumerate(answer.bad, start=before.bad + 1):
            if count <= NAMED or count > limit:
                bad_lines.append(f"{self._where(block, lines + index)} {reason}")
            if count > limit:
                first, last = bad_lines[0], bad_lines[-1]
                raise DataError(
                    f"{count} bad lines, --max-bad-lines allows {limit}; the first: {first}; the last: {last}"
                    if limit
                    else f"{first}; correct it, or skip up to N such lines with --max-bad-lines N"
                )
        counts = dict(before.counts)
        for name, count in answer.counts.items():
            counts[name] = counts.get(name, 0) + count
        return Point(
            Position(block.segment, block.stop),
            lines + answer.lines,
            before.documents + answer.documents,
            before.text_bytes + answer.text_bytes,
            self._used_before[block.segment] + block.used,
            before.bad + len(answer.bad),
            tuple(bad_lines[:NAMED]),
            tuple(map(sum, zip(before.num_bytes, answer.num_bytes, strict=True))),
            tuple(map(sum, zip(before.sequences, answer.sequences, strict=True))),
            counts,
        )

    def _finish(self) -> None:
        """Take in the blocks whose bytes are written, as far as all before them are."""
        while (flight := self._flights.get(self._done)) is not None and flight.is_written:
            assert isinstance(flight.answer, Answer)
            assert flight.point is not None
            self._files.add(flight.answer, flight.point)
            del self._flights[self._done]
            self._done += 1

    def _where(self, block: Block, index: int) -> str:
        """Return ``file:line`` of a line; ``index`` counts from the segment's first one."""
        start = self._segments[block.segment].start
        before = 1 + count_lines(block.path, start - 1) if start else 0
        return f"{'stdin' if block.path == STDIN else block.path}:{before + index + 1}:"

    def _explained(self, error: Exception, where: str = "") -> Exception:
        if isinstance(error, OSError):
            return cannot_write(self._job, error)
        if isinstance(error, MemoryError):
            return DataError("out of memory; use fewer --workers. Rerun the same command to resume")
        if isinstance(error, MegadsError) and where:
            return type(error)(f"{where} {error}")
        return error


def cannot_write(job: Work, error: OSError) -> DataError:
    """Return the error that the output cannot be written."""
    cure = "free some space" if error.errno in FULL else f"fix that, or use another {job.option}"
    return DataError(
        f"{job.target}: cannot be written: {os.strerror(error.errno or 0).lower()}; {cure}, then rerun the same command"
    )
