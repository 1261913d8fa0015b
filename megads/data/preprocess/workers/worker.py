"""A worker process: reads a stretch of the input, parses, splits, encodes, and writes to the place that it gets.

Workers do everything that costs time, each all of it for its own stretch; so no step waits for
another one, and no tokens go from process to process. The leading process decides who takes which
stretch, and, in input order, where the tokens belong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.preprocess.input.files import BOM
from megads.data.preprocess.input.json_lines import Parsed, parse_lines
from megads.data.preprocess.input.ranges import RangeReader
from megads.data.preprocess.input.sentences import Splitter, make_splitter
from megads.data.preprocess.plan import Job
from megads.data.preprocess.workers.pool import (
    Block,
    Encoded,
    Failed,
    Output,
    Ready,
    Start,
    Write,
    answer_blocks,
    telling,
)
from megads.data.tokenizers.base import Encoded as Ids
from megads.errors import DataError, MegadsError

Numbers = npt.NDArray[Any]

# Above so many tokens a document, copying documents one by one is the faster way.
_LONG = 400


class Problem(Exception):
    """An error at one line of a block."""

    def __init__(self, error: Exception, line: int):
        super().__init__(error)
        self.error, self.line = error, line


def serve(pipe: Connection, job: Job, sample: Sequence[str] | None) -> None:
    """Work until the leader at the other end of ``pipe`` is gone.

    ``sample`` are texts by which the encoder is chosen; None: the leader names it.
    """
    with telling(pipe):
        worker = _Worker(job, sample)
        pipe.send(worker.ready)
        worker.begin(pipe.recv())

        def encode(block: Block) -> Encoded | Failed:
            try:
                return worker.encode(block)
            except Problem as problem:
                return Failed(problem.error, block.number, problem.line)

        answer_blocks(pipe, encode, worker.write)


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
        self._split: Splitter | None = None
        if job.split_sentences:
            self._split = make_splitter(job.lang, keep_newlines=job.keep_newlines, name=job.splitter)
        self._encoder: Any = None
        self._reader = RangeReader()
        self._waiting: dict[int, list[Numbers]] = {}  # tokens of each key, by block
        self._files: list[int] = []
        self._dtype: np.dtype[Any] = np.dtype("<i4")
        name = reason = ""
        if sample is not None:
            from megads.data.tokenizers.encoders.fastest import choose_encoder

            proofs = Path(job.how.proofs) if job.how.proofs else None
            choice = choose_encoder(self._tokenizer, sample, wanted=job.how.encoder, proofs=proofs)
            self._encoder, name, reason = choice.encoder, choice.name, choice.reason
        self.ready = Ready(self._limit, self._eod, self._tokenizer.fingerprint, name, reason)

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
        packed = [self._pack(parsed, place) for place in range(len(self._job.keys))]
        self._waiting[block.number] = [tokens for tokens, _, _ in packed]
        outputs, note = tuple(output for _, output, _ in packed), max(note for _, _, note in packed)
        return Encoded(
            number=block.number,
            documents=parsed.documents,
            text_bytes=size,
            lines=parsed.lines,
            bad=parsed.bad,
            num_bytes=tuple(each.num_bytes for each in outputs),
            sequences=tuple(len(each.lengths) for each in outputs),
            note=note,
            outputs=outputs,
        )

    def write(self, message: Write) -> None:
        """Put the tokens of a block where they belong."""
        for file, tokens, offset in zip(self._files, self._waiting.pop(message.number), message.offsets, strict=True):
            view = tokens.data.cast("B") if len(tokens) else memoryview(b"")
            while view:
                done = os.pwrite(file, view, offset)
                view, offset = view[done:], offset + done

    def _pack(self, parsed: Parsed, place: int) -> tuple[Numbers, Output, str]:
        """Return the documents of one key as :func:`pack` does, and why the original encoded them, if it did."""
        (ids, offsets), note = self._ids(parsed, place)
        if self._job.verify and not note:
            self._verify(parsed, place, ids, offsets)
        parsed.texts[place] = []
        counts, documents = parsed.counts[place], parsed.documents
        packed = pack(ids, offsets, counts, documents, dtype=self._dtype, eod=self._eod, limit=self._limit)
        return *packed, note

    def _ids(self, parsed: Parsed, place: int) -> tuple[Ids, str]:
        texts = parsed.texts[place]
        size = self._job.how.chunk_size or len(texts) or 1
        try:
            parts = [self._encoder.encode_batch(texts[at : at + size]) for at in range(0, len(texts), size)]
        except MemoryError:
            raise
        except BaseException as error:  # whatever a library does with an odd text; a panic in Rust is no Exception
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


def pack(
    ids: Numbers,
    offsets: npt.NDArray[np.int64],
    counts: list[int] | None,
    documents: int,
    *,
    dtype: np.dtype[Any],
    eod: int | None,
    limit: int,
) -> tuple[Numbers, Output]:
    """Return the tokens of documents as they are stored, and what else is.

    Sequences without tokens are dropped; ``eod`` is put behind the last sequence of each document
    that has one. As in Megatron, a document without tokens stays a document, without sequences.

    Args:
        ids: of all texts, end to end.
        offsets: [texts + 1], where each text begins and the last one ends.
        counts: [documents] texts of each; None: 1 each.
        documents: their number.
        dtype: of the file.
        eod: id at the end of documents, None for none.
        limit: what every id must be below.

    Raises:
        DataError: an id is out of range.
    """
    if len(ids) and (int(ids.max()) >= limit or int(ids.min()) < 0):
        raise DataError(f"the tokenizer gave id {ids.max()}, but its vocabulary ends at {limit - 1}")
    lengths = np.diff(offsets).astype(np.int32)
    kept = lengths > 0
    owners = np.arange(documents) if counts is None else np.repeat(np.arange(documents), counts)
    if not kept.all():
        lengths, owners = lengths[kept], owners[kept]
    sequences = np.bincount(owners, minlength=documents).astype(np.int32)
    if eod is None or not len(lengths):
        tokens = ids.astype(dtype)
    else:
        last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
        ends = np.cumsum(lengths, dtype=np.int64)[last]
        lengths[last] += 1
        tokens = _insert(ids, ends, eod, dtype)
    return tokens, Output(tokens.nbytes, lengths, sequences)


def _insert(ids: Numbers, ends: npt.NDArray[np.int64], eod: int, dtype: np.dtype[Any]) -> Numbers:
    """Return ``ids`` as ``dtype`` with ``eod`` behind each of the positions ``ends``; the last one is the end."""
    result = np.empty(len(ids) + len(ends), dtype)
    places = ends + np.arange(len(ends))
    if len(ids) > _LONG * len(ends):
        begin = 0
        for shift, end in enumerate(ends.tolist()):
            result[begin + shift : end + shift] = ids[begin:end]
            begin = end
        result[places] = eod
    else:
        is_token = np.ones(len(result), bool)
        is_token[places] = False
        result[is_token] = ids
        result[places] = eod
    return result
