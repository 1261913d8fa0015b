"""Step 2: a score for each text of a file, in order, so that an interrupted call can be resumed at any line."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.detoxify.output_lines import OutputLines
from megads.detoxify.records import read_records, text_of
from megads.detoxify.scoring import Score, Scorer
from megads.detoxify.stopped import Stopped

END_OF_TEXT = "<|endoftext|>"
MOST_BYTES = 20480
"""Of a text that is scored; the service takes no more."""
AHEAD = 2
"""Calls that wait, for each one that runs."""
POLL_S = 0.2


@dataclass(frozen=True)
class Source:
    """What is to be annotated.

    Attributes:
        path: JSON lines with ``text``, compressed or not.
        ends: texts that stand for the end of a document; they are removed.
        count: lines.
        digest: of the lines.
    """

    path: Path
    ends: tuple[str, ...]
    count: int
    digest: str

    def about(self, scorer: Scorer) -> dict[str, Any]:
        """Return what decides the annotated lines."""
        return {**scorer.about(), "lines": self.count, "content": self.digest, "end_of_text": list(self.ends)}

    def records(self, first: int) -> Iterator[dict[str, Any]]:
        """Yield the records from number ``first`` on, without ends of text."""
        for where, record in itertools.islice(read_records(self.path), first, None):
            text = text_of(where, record)
            for end in self.ends:
                text = text.replace(end, "")
            yield {**record, "text": text}


@dataclass(frozen=True)
class Annotated:
    """What a call did: texts that were there already, new ones, those without a score, and the signal that ended it."""

    had: int
    new: int
    empty: int
    refused: int
    ended_by: int = 0


def look_at(path: Path, ends: Sequence[str] = (END_OF_TEXT,)) -> Source:
    """Read a file once, before any text is scored; DataError where a line has no text."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for where, record in read_records(path):
        digest.update(repr(sorted(record.items())).encode("utf-8", "surrogatepass"))
        text_of(where, record)
        count += 1
    return Source(path, tuple(ends), count, digest.hexdigest())


def scored_text(text: str) -> str:
    """Return what of a text is scored: at most :data:`MOST_BYTES` in UTF-8, whole characters."""
    # Half of a surrogate pair has no UTF-8.
    return text.encode("utf-8", "replace")[:MOST_BYTES].decode("utf-8", "ignore")


def annotate(
    source: Source,
    lines: OutputLines,
    scorer: Scorer,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Annotated:
    """Write every record of ``source`` with its ``score``; an empty text has the score null.

    SIGINT and SIGTERM end it after the requests that are under way; a second one ends the process at once.

    Raises:
        DataError: the scorer or the file fails; what was scored is kept.
        ConfigError: the scorer fails for good.
    """
    had, counts = lines.done, Counter[str]()

    def take(batch: list[dict[str, Any]], scores: list[Score | None]) -> None:
        for record, score in zip(batch, scores, strict=True):
            if score is None:
                counts["refused" if record["text"].strip() else "empty"] += 1
        lines.write({**record, "score": score} for record, score in zip(batch, scores, strict=True))
        progress(lines.done - had, source.count - had)

    with _signals_noted() as signals:
        _run(source.records(had), scorer, take, signals)
    if not signals:
        lines.publish(**counts)
    return Annotated(had, lines.done - had, counts["empty"], counts["refused"], signals[0] if signals else 0)


def _run(
    records: Iterator[dict[str, Any]],
    scorer: Scorer,
    take: Callable[[list[dict[str, Any]], list[Score | None]], None],
    signals: Sequence[int],
) -> None:
    """Score batches in threads, and take them in order, until a signal comes or all are done."""
    under_way: deque[tuple[list[dict[str, Any]], Future[list[Score | None]]]] = deque()
    pool = ThreadPoolExecutor(scorer.workers, "megads-score")
    try:
        is_ended = False
        while not signals and (under_way or not is_ended):
            while not is_ended and len(under_way) < AHEAD * scorer.workers:
                batch = list(itertools.islice(records, scorer.batch))
                is_ended = not batch
                if batch:
                    under_way.append((batch, pool.submit(_score, scorer, batch)))
            if under_way and wait([under_way[0][1]], POLL_S).done:
                batch, future = under_way.popleft()
                take(batch, future.result())
    finally:
        scorer.stop()
        for _, future in under_way:
            future.cancel()
        pool.shutdown()
        scorer.close()
    # What was under way when the signal came has its scores now, up to the first that was still waiting.
    while signals and under_way:
        batch, future = under_way.popleft()
        if future.cancelled() or isinstance(future.exception(), Stopped):
            return
        take(batch, future.result())


def _score(scorer: Scorer, batch: Sequence[Mapping[str, Any]]) -> list[Score | None]:
    texts = [scored_text(record["text"]) if record["text"].strip() else "" for record in batch]
    scores = iter(scorer.score([text for text in texts if text])) if any(texts) else iter(())
    return [next(scores) if text else None for text in texts]


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Yield a list that gets the number of the first SIGINT or SIGTERM; the second one ends the process at once."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        if came:
            os._exit(128 + number)  # an answer may be slow, and what is written needs no clean end
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
