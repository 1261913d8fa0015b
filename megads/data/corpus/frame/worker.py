"""A worker process: reads a stretch of the input, has the step make something of it, and writes that to its place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

from megads.data.corpus.frame.job import CorpusJob
from megads.data.corpus.frame.step import DROPPED, Lines
from megads.data.preprocess.input.files import BOM
from megads.data.preprocess.input.ranges import RangeReader
from megads.data.preprocess.plan import Segment
from megads.data.preprocess.workers.pool import Answer, Block, Write, answer_blocks, telling

READY = "ready"


def serve(pipe: Connection, job: CorpusJob, segments: Sequence[Segment]) -> None:
    """Work until the leader at the other end of ``pipe`` is gone."""
    with telling(pipe):
        job.step.begin()
        pipe.send(READY)
        worker = _Worker(job, segments, pipe.recv())
        answer_blocks(pipe, worker.make, worker.write)


class _Worker:
    def __init__(self, job: CorpusJob, segments: Sequence[Segment], paths: tuple[str, ...]):
        self._job, self._segments = job, segments
        self._reader = RangeReader()
        self._waiting: dict[int, list[bytes]] = {}  # bytes of each stream, by block
        self._files = [os.open(path, os.O_WRONLY) for path in paths]

    def make(self, block: Block) -> Answer:
        """Return what the block adds to the output; its bytes are kept until :meth:`write`."""
        data = self._reader.read(block.path, block.start, block.stop) if block.data is None else block.data
        size, begin = len(data), self._reader.begin if block.data is None else block.start
        if begin == 0 and data.startswith(BOM):  # only a file's first bytes are a byte order mark
            data, begin = data[len(BOM) :], len(BOM)
        result = self._job.step.block(Lines(data, self._segments[block.segment].source, begin))
        if not self._job.dropped:
            result.outputs[DROPPED].clear()
        outputs = [b"".join(pieces) for pieces in result.outputs]
        self._waiting[block.number] = outputs
        return Answer(
            number=block.number,
            documents=result.documents,
            text_bytes=size,
            lines=result.lines,
            bad=result.bad,
            num_bytes=tuple(map(len, outputs)),
            counts=result.counts,
        )

    def write(self, message: Write) -> None:
        """Put the bytes of a block where they belong."""
        outputs = self._waiting.pop(message.number)
        if self._job.step.is_numbered:
            outputs = self._job.step.place(outputs, message.documents)
        for file, output, offset in zip(self._files, outputs, message.offsets, strict=True):
            view = memoryview(output)
            while view:
                done = os.pwrite(file, view, offset)
                view, offset = view[done:], offset + done
