"""A worker process: reads a stretch of the input, parses, splits, encodes, and writes to the place that it gets.

Workers do everything that costs time, each all of it for its own stretch; so no step waits for
another one, and no tokens go from process to process. The leading process decides who takes which
stretch, and, in input order, where the tokens belong.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from megads.data.preprocess.input.json_lines import BOM, Parsed, parse_lines
from megads.data.preprocess.input.ranges import RangeReader
from megads.data.preprocess.input.sentences import make_splitter
from megads.data.preprocess.plan import How, Job
from megads.data.preprocess.workers.messages import Block, Encoded, Failed, Output, Ready, Start, Write, Written
from megads.data.preprocess.workers.pack import Packed, pack
from megads.data.tokenizers.base import Encoded as Ids
from megads.errors import DataError, MegadsError


class Problem(Exception):
    """An error at one line of a block."""

    def __init__(self, error: Exception, line: int = -1):
        super().__init__(error)
        self.error, self.line = error, line


def serve(pipe: Connection, job: Job, sample: Sequence[str] | None) -> None:
    """Work until the leader is gone.

    Args:
        pipe: to the leader.
        job: what to do.
        sample: texts by which the encoder is chosen; None: the leader names it.
    """
    try:
        worker = _Worker(job, sample)
        pipe.send(worker.ready)
        worker.begin(pipe.recv())
        while True:
            message: Write | Block = pipe.recv()
            if isinstance(message, Write):
                worker.write(message)
                pipe.send(Written(message.number))
            else:
                pipe.send(_answer(worker, message))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except (MegadsError, OSError) as error:
        pipe.send(Failed(error))
    except BaseException:
        pipe.send(Failed(RuntimeError("in a worker:\n" + traceback.format_exc())))


def _answer(worker: _Worker, block: Block) -> Encoded | Failed:
    try:
        return worker.encode(block)
    except Problem as problem:
        return Failed(problem.error, block.number, problem.line)
    except (MegadsError, MemoryError) as error:
        return Failed(error, block.number)


class _Worker:
    """Attributes: ready: what the leader needs to know of the tokenizer."""

    def __init__(self, job: Job, sample: Sequence[str] | None):
        # The libraries would start threads of their own in every worker.
        os.putenv("RAYON_NUM_THREADS", "1")
        os.putenv("TOKENIZERS_PARALLELISM", "false")
        from megads.data.tokenizers.build import make_tokenizer

        self._job = job
        self._tokenizer = make_tokenizer(job.tokenizer)
        self._eod = self._tokenizer.eod if job.append_eod else None
        self._limit = self._tokenizer.vocab_size
        self._split = make_splitter(job.lang, keep_newlines=job.keep_newlines) if job.split_sentences else None
        self._encoder: Any = None
        self._reader = RangeReader()
        self._waiting: dict[int, list[Packed]] = {}
        self._files: list[int] = []
        self._dtype: np.dtype[Any] = np.dtype("<i4")
        words = ("", "", "") if sample is None else self._choose(sample, job.how)
        self.ready = Ready(self._limit, self._eod, self._tokenizer.fingerprint, *words)

    def _choose(self, sample: Sequence[str], how: How) -> tuple[str, str, str]:
        from megads.data.tokenizers.encoders.fastest import choose_encoder

        proofs = Path(how.proofs) if how.proofs else None
        choice = choose_encoder(self._tokenizer, sample, wanted=how.encoder, proofs=proofs)
        self._encoder = choice.encoder
        return choice.name, choice.encoder.name, choice.reason

    def begin(self, start: Start) -> None:
        """Open the output."""
        if self._encoder is None:
            from megads.data.tokenizers.encoders.fastest import make_encoder

            self._encoder = make_encoder(self._tokenizer, start.encoder)
        self._dtype = np.dtype(start.dtype)
        self._files = [os.open(path, os.O_WRONLY) for path in start.bins]

    def encode(self, block: Block) -> Encoded:
        """Return what the block adds to the output; the tokens are kept until :meth:`write`."""
        data = self._reader.read(block.path, block.start, block.stop) if block.data is None else block.data
        size = len(data)
        # Only a file's first bytes are a byte order mark; others would be bad lines.
        parsed = parse_lines(data.removeprefix(BOM) if block.start == 0 else data, self._job.keys, self._split)
        del data
        packed, notes = [], []
        for place in range(len(self._job.keys)):
            one, note = self._pack(parsed, place)
            packed.append(one)
            notes.append(note)
        self._waiting[block.number] = packed
        outputs = tuple(Output(one.tokens.nbytes, one.lengths, one.sequences) for one in packed)
        return Encoded(block.number, outputs, parsed.documents, size, parsed.lines, parsed.bad, max(notes))

    def write(self, message: Write) -> None:
        """Put the tokens of a block where they belong."""
        for file, one, offset in zip(self._files, self._waiting.pop(message.number), message.offsets, strict=True):
            view = one.tokens.data.cast("B") if len(one.tokens) else memoryview(b"")
            while view:
                done = os.pwrite(file, view, offset)
                view, offset = view[done:], offset + done

    def _pack(self, parsed: Parsed, place: int) -> tuple[Packed, str]:
        """Return the documents of one key as they are stored, and why the original encoded them, if it did."""
        (ids, offsets), note = self._ids(parsed, place)
        if self._job.verify and not note:
            self._verify(parsed, place, ids, offsets)
        parsed.texts[place] = []
        counts, documents = parsed.counts[place], parsed.documents
        one = pack(ids, offsets, counts, documents, dtype=self._dtype, eod=self._eod, limit=self._limit)
        return one, note

    def _ids(self, parsed: Parsed, place: int) -> tuple[Ids, str]:
        texts = parsed.texts[place]
        size = self._job.how.chunk_size or len(texts) or 1
        try:
            parts = [self._encoder.encode_batch(texts[at : at + size]) for at in range(0, len(texts), size)]
        except MemoryError:
            raise
        except BaseException as error:  # whatever a library does with a text that it was not made for
            note = (
                f"{self._encoder.name} failed ({type(error).__name__}: {error}); the original library "
                "encodes such texts"
            )
            return self._ids_of_original(parsed, place), note
        return _join(parts), ""

    def _ids_of_original(self, parsed: Parsed, place: int) -> Ids:
        found = []
        for index, text in enumerate(parsed.texts[place]):
            try:
                ids = np.asarray(self._tokenizer.encode(text), np.int64)
            except MegadsError as error:
                raise Problem(error, parsed.line_of(place, index)) from None
            found.append((ids, np.array([0, len(ids)], np.int64)))
        return _join(found)

    def _verify(self, parsed: Parsed, place: int, ids: Any, offsets: Any) -> None:
        for index, text in enumerate(parsed.texts[place]):
            if self._tokenizer.encode(text) != ids[offsets[index] : offsets[index + 1]].tolist():
                error = DataError(
                    f"{self._encoder.name} gives different ids from the tokenizer itself for {text[:40]!r}...; "
                    "use --encoder tokenizers"
                )
                raise Problem(error, parsed.line_of(place, index))


def _join(parts: list[Ids]) -> Ids:
    """Return the ids of several batches as those of one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, np.int32), np.zeros(1, np.int64)
    begins = np.cumsum([0, *(len(ids) for ids, _ in parts)])
    offsets = [offsets[1:] + begin for (_, offsets), begin in zip(parts, begins, strict=False)]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([np.zeros(1, np.int64), *offsets])
