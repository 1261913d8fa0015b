"""``megads corpus decontaminate``: texts of tasks are cut out of all documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from megads.data.corpus.contamination.cut import Limits, counted, pieces_of
from megads.data.corpus.contamination.dictionary import load_ngrams, save_ngrams
from megads.data.corpus.contamination.ngrams import LEAST, MOST, Matcher, ngrams_of
from megads.data.corpus.contamination.tasks import task_texts
from megads.data.corpus.frame.step import (
    DROPPED,
    KEPT,
    Document,
    Drop,
    Finished,
    Joined,
    Lines,
    Result,
    Step,
    drop_line,
    dump,
)
from megads.data.corpus.ordered import ordered_map
from megads.data.preprocess.input.json_lines import BadLine
from megads.errors import ConfigError

_FOUND = 2  # stream: the n-grams of a document, a list a line
_CLEAN, _FULL = b"0", b"1"  # begin a line: without n-grams; to be read again
_AT_ONCE = 1 << 20  # bytes of lines that a worker finishes
_NUMBER = "split_id"


@dataclass(frozen=True)
class Task:
    """Texts that must not be in the corpus."""

    name: str
    path: str = ""
    key: str = ""


@dataclass(frozen=True)
class Rules:
    """What an n-gram is, and which ones count."""

    most: int = MOST
    least: int = LEAST
    threshold: int = 10  # documents; an n-gram in as many or more is common speech
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ConfigError(
                f"--min-ngram-size {self.least} is above --max-ngram-size {self.most}; pass a smaller one"
            )


class Decontaminate(Step):
    """Documents without the n-grams of tasks.

    A worker notes the n-grams of each document. When it is known how common each one is, :meth:`finish` cuts.

    Args:
        tasks: their names are in the numbers of the pieces; files are not read where ``loaded`` is given.
        key: of a document's text.
        rules: what is cut.
        loaded: file of a dictionary, "" for none.
        saved: file that gets the n-grams that count, "" for none.
        has_output: whether documents are cut; without, the dictionary is the output.
        workers: processes that cut.
    """

    name = "decontaminate"
    num_streams = 3

    def __init__(
        self,
        tasks: Sequence[Task],
        key: str,
        rules: Rules,
        *,
        loaded: str = "",
        saved: str = "",
        has_output: bool = True,
        workers: int = 1,
    ):
        self._tasks, self.key, self._rules, self._loaded = tuple(tasks), key, rules, loaded
        self._has_output, self._workers = has_output, workers
        self.extra_outputs = {"--save-dictionary": saved} if saved and has_output else {}

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        ngrams = self._ngrams
        digest = hashlib.sha256("\n".join(sorted(ngrams)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return {
            "tasks": [task.name for task in self._tasks],
            "ngrams": len(ngrams),
            "ngrams_sha256": digest,
            "is_loaded": bool(self._loaded),
            "output": self._has_output,
            "key": self.key,
            **asdict(self._rules),
        }

    def load(self) -> None:
        """Read the tasks once for all workers."""
        self._matcher = Matcher(self._ngrams, self._rules.most)

    def block(self, lines: Lines) -> Result:
        """Note the n-grams of each document of a block."""
        result = Result([[] for _ in range(self.num_streams)])
        kept, found = result.outputs[KEPT], result.outputs[_FOUND]
        for document in self.documents(lines, result):
            try:
                is_numbered = self._check_number(document)
            except BadLine as error:
                result.bad.append((document.number, str(error)))
                result.documents -= 1
                continue
            ngrams = counted(document.text, self._matcher)
            if ngrams:
                found += (dump_list(ngrams), b"\n")
            if self._has_output:
                kept += (_FULL if ngrams or is_numbered else _CLEAN, document.line, b"\n")
        return result

    def _check_number(self, document: Document) -> bool:
        """Return whether a document has the number of an earlier call; BadLine if it cannot be one."""
        number = document.content.get(_NUMBER, "")
        if not isinstance(number, str):
            raise BadLine(f"{_NUMBER!r} is not a text; an earlier call wrote one")
        return _NUMBER in document.content

    def finish(self, joined: Joined) -> Finished:
        """Drop n-grams that are common, and cut the others out."""
        ngrams = self._counting(joined)
        joined.counts["ngrams"] = len(ngrams)
        dictionary = joined.folder / "dictionary"
        save_ngrams(dictionary, ngrams)
        if not self._has_output:
            return Finished(dictionary, joined.streams[DROPPED])
        output, dropped = joined.folder / "output", joined.folder / "dropped"
        stream = os.open(joined.streams[KEPT], os.O_RDONLY)
        try:
            cutter = _Cutter(stream, "-".join(task.name for task in self._tasks), self.key, ngrams, self._rules)
            stretches = _stretches(joined.streams[KEPT])
            sums: Counter[str] = Counter({"kept": 0, "changed": 0, "pieces": 0})
            with open(output, "wb") as out, open(dropped, "wb") as rest:
                for done in ordered_map(cutter, stretches, self._workers, joined.check):
                    out.write(done.output)
                    rest.write(done.dropped)
                    sums.update(done.counts)
        finally:
            os.close(stream)
        joined.counts.update(sums)
        return Finished(output, dropped, (dictionary,) if self.extra_outputs else ())

    def _counting(self, joined: Joined) -> frozenset[str]:
        """Return the n-grams that are in fewer documents than the threshold; all of a loaded dictionary."""
        if self._loaded:
            return self._ngrams
        counts: Counter[str] = Counter()
        with open(joined.streams[_FOUND], "rb") as lines:
            for line in lines:
                counts.update(json.loads(line))
        joined.check()
        common = {ngram for ngram, count in counts.items() if count >= self._rules.threshold}
        joined.counts["common_ngrams"] = len(common)
        return self._ngrams - common

    @cached_property
    def _ngrams(self) -> frozenset[str]:
        rules = self._rules
        if self._loaded:
            return load_ngrams(self._loaded, rules.most)
        return frozenset(
            ngram
            for task in self._tasks
            for text in task_texts(task.name, task.path, task.key)
            for ngram in ngrams_of(text, rules.most, rules.least)
        )


def dump_list(ngrams: Sequence[str]) -> bytes:
    """Return n-grams as a line without its break."""
    return json.dumps(ngrams).encode()


@dataclass(frozen=True)
class _Stretch:
    """Lines of a stream."""

    start: int  # in bytes
    size: int
    number: int  # documents before it


def _stretches(path: Path) -> Iterator[_Stretch]:
    """Cut a file of lines into stretches of whole ones."""
    start = at = number = count = 0
    with open(path, "rb") as file:
        while piece := file.read(_AT_ONCE):
            if end := piece.rfind(b"\n") + 1:
                yield _Stretch(start, at + end - start, number)
                number += count + piece.count(b"\n")
                start, count = at + end, 0
            at += len(piece)


@dataclass
class _Cut:
    """What becomes of a stretch."""

    output: bytes = b""
    dropped: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)


class _Cutter:
    """Cuts the documents of a stretch, and numbers the pieces as Megatron-LM does."""

    def __init__(self, stream: int, prefix: str, key: str, ngrams: Collection[str], rules: Rules):
        self._stream, self._prefix, self._key, self._limits = stream, prefix, key, rules.limits
        self._matcher = Matcher(ngrams, rules.most)
        self._name = f'"{_NUMBER}": '.encode()

    def __call__(self, stretch: _Stretch) -> _Cut:
        done, kept, dropped = _Cut(), [], []
        lines = os.pread(self._stream, stretch.size, stretch.start).split(b"\n")[:-1]
        for number, line in enumerate(lines, stretch.number + 1):
            if line[:1] == _CLEAN:
                kept.append(self._numbered(line[1:], number))
                done.counts.update(kept=1, pieces=1)
                continue
            pieces = self._pieces(line[1:], number, done.counts)
            if isinstance(pieces, Drop):
                dropped.append(drop_line(line[1:], pieces))
                done.counts.update({f"dropped/{pieces.reason}": 1, f"dropped_bytes/{pieces.reason}": len(line)})
            else:
                kept += pieces
        done.output, done.dropped = _joined(kept), _joined(dropped)
        return done

    def _numbered(self, line: bytes, number: int) -> bytes:
        """Return a clean document with its number."""
        inner = line[:-1].rstrip()
        name = json.dumps(f"{self._prefix}-{number:010d}-0000", ensure_ascii=False).encode()
        return inner + (b"" if inner == b"{" else b", ") + self._name + name + b"}"

    def _pieces(self, line: bytes, number: int, counts: Counter[str]) -> list[bytes] | Drop:
        content = json.loads(line)
        text = content[self._key]
        pieces = pieces_of(text, self._matcher, self._limits)
        if not pieces:
            return Drop("contaminated")
        if len(pieces) > self._limits.splits:
            return Drop("splits", f"{len(pieces)} pieces")
        is_cut = len(pieces) > 1
        is_trimmed = len(pieces) == 1 and len(pieces[0]) < len(text)
        counts.update(kept=1, pieces=len(pieces), changed=is_cut or is_trimmed, split=is_cut, trimmed=is_trimmed)
        before = f"{content[_NUMBER]}-" if _NUMBER in content else ""
        names = (f"{before}{self._prefix}-{number:010d}-{place:04d}" for place in range(len(pieces)))
        return [dump({**content, self._key: piece, _NUMBER: name}) for piece, name in zip(pieces, names, strict=True)]


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines, b""]) if lines else b""
