"""What a corpus tool does with documents. The frame does the rest: files, workers, ranks, resuming, the report.

A tool is a :class:`Step`. Most need :meth:`Step.options` and :meth:`Step.judge` alone.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import orjson

from megads.data.preprocess.input.json_lines import KINDS, BadLine, load_object, value_of

KEPT, DROPPED = 0, 1
"""Streams of bytes that every step has."""


@dataclass(frozen=True)
class Drop:
    """Why a document is dropped: a word that is counted, and what was found."""

    reason: str
    detail: str = ""


class Document:
    """An object of a line. ``content`` must not be changed.

    Attributes:
        line: the line, without blanks around it.
        content: the object.
        number: index of the line in its block.
        text: what it has under the step's key; "" where the step has no key.
        begin: where the line begins in the input, in bytes of text: the same for any number of workers and ranks.
    """

    __slots__ = ("begin", "content", "line", "number", "text")

    def __init__(self, line: bytes, content: dict[str, Any], text: str, number: int = 0, begin: int = 0):
        self.line, self.content, self.text, self.number, self.begin = line, content, text, number, begin

    def replaced(self, **values: Any) -> bytes:
        """Return the line of the object with other ``values``, the keys in order, new ones behind; else BadLine."""
        try:  # Python's own module: orjson makes floats of large integers
            return dump({**json.loads(self.line), **values})
        except RecursionError:
            raise BadLine("is JSON nested too deeply") from None


def dump(content: dict[str, Any]) -> bytes:
    """Return an object as a line without its break, as Megatron's tools write it: characters are not escaped."""
    try:
        return json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair under another key
        return json.dumps(content).encode()


def drop_line(line: bytes, drop: Drop) -> bytes:
    """Return the line of a dropped document: as it was, with the reason under ``dropped``."""
    inner = line.rstrip()[:-1].rstrip()
    found = {"reason": drop.reason, "detail": drop.detail} if drop.detail else {"reason": drop.reason}
    return inner + (b"" if inner == b"{" else b", ") + b'"dropped": ' + json.dumps(found).encode() + b"}"


@dataclass(frozen=True)
class Lines:
    """A block: whole lines of one input; the last may lack its line break."""

    data: bytes
    source: int  # index among the inputs
    begin: int  # where the lines begin in it, in bytes of text


@dataclass
class Result:
    """What becomes of a block.

    Attributes:
        outputs: for each stream, pieces of bytes.
        documents: read.
        lines: blank and bad ones included.
        bad: (index of the line, what is wrong).
        counts: whatever is counted; the frame adds them up. Names of the frame: ``kept``, ``changed``,
            ``dropped/REASON`` and ``dropped_bytes/REASON``.
    """

    outputs: list[list[bytes]]
    documents: int = 0
    lines: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, more: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + more

    def drop(self, line: bytes, drop: Drop) -> None:
        """Count a dropped document, and note it."""
        self.count(f"dropped/{drop.reason}")
        self.count(f"dropped_bytes/{drop.reason}", len(line) + 1)
        self.outputs[DROPPED] += (drop_line(line, drop), b"\n")


@dataclass(frozen=True)
class Joined:
    """What the leader has when all blocks are done, for :meth:`Step.finish`.

    Attributes:
        streams: the files of bytes, in the order of the input. They stay as they are: a run that is killed here
            resumes with them.
        folder: an empty folder for other files, on the disk of the output.
        counts: the sums; may be changed.
        check: to be called now and then; raises to stop.
        report: takes a line for the user.
        wants_dropped: whether the dropped documents are asked for.
    """

    streams: tuple[Path, ...]
    folder: Path
    counts: dict[str, int]
    check: Callable[[], None]
    report: Callable[[str], None]
    wants_dropped: bool = False


@dataclass(frozen=True)
class Finished:
    """The files that are published: streams as they are, or files of :attr:`Joined.folder`."""

    output: Path
    dropped: Path
    extra: tuple[Path, ...] = ()  # as Step.extra_outputs


class Step(ABC):
    """One corpus tool. Made before the workers are forked, and then in each of them.

    Attributes:
        name: of the command.
        num_streams: files of bytes that come out: kept lines, dropped lines, others for :meth:`finish`.
        takes_surrogates: whether a text may hold half of a surrogate pair.
        is_numbered: whether :meth:`place` is called; such a step runs on one rank.
        extra_outputs: further files that :meth:`finish` makes: option -> path.
        key: under which documents have their text; "" for none.
    """

    name: ClassVar[str]
    num_streams: int = 2
    takes_surrogates: bool = False
    is_numbered: bool = False
    extra_outputs: Mapping[str, str] = MappingProxyType({})
    key: str = "text"

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return everything that decides the output, as JSON; other work is not resumed by this step."""

    def load(self) -> None:
        """Load what the workers share; called once, before they are forked. Must not start threads."""
        return

    def begin(self) -> None:
        """Get ready in a worker."""
        return

    def key_of(self, source: int) -> str:
        """Return the key under which the documents of an input have their text; "" for none."""
        return self.key

    def judge(self, document: Document, result: Result) -> Drop | list[bytes] | None:
        """Return None to keep a document, why it is dropped, or the lines that take its place.

        Raises:
            BadLine: the line is not a document of this tool.
        """
        raise NotImplementedError

    def block(self, lines: Lines) -> Result:
        """Return what becomes of a block; by default :meth:`judge` is asked about each document."""
        result = Result([[] for _ in range(self.num_streams)])
        kept = result.outputs[KEPT]
        for document in self.documents(lines, result):
            try:
                verdict = self.judge(document, result)
            except BadLine as error:
                result.bad.append((document.number, str(error)))
                result.documents -= 1
                continue
            if verdict is None:
                kept += (document.line, b"\n")
                result.count("kept")
            elif isinstance(verdict, Drop):
                result.drop(document.line, verdict)
            else:
                for line in verdict:
                    kept += (line, b"\n")
                result.count("kept")
                result.count("changed")
        return result

    def place(self, outputs: list[bytes], documents: int) -> list[bytes]:
        """Return ``outputs`` of a block, no longer or shorter, with ``documents`` before it."""
        return outputs

    def finish(self, joined: Joined) -> Finished:
        """Leader: make of the streams what is published; by default the first two streams."""
        return Finished(joined.streams[KEPT], joined.streams[DROPPED])

    def documents(self, lines: Lines, result: Result) -> Iterator[Document]:
        """Yield the documents of a block; count lines and documents, and note bad lines."""
        key, loads = self.key_of(lines.source), orjson.loads
        rows = lines.data.split(b"\n")
        if not rows[-1]:
            rows.pop()
        result.lines += len(rows)
        end = lines.begin
        for number, row in enumerate(rows):
            begin, end = end, end + len(row) + 1
            line = row.strip()
            if not line:
                continue
            try:
                content = loads(line)
                text = content[key] if key else ""
                is_good = text.__class__ is str and content.__class__ is dict
            except (ValueError, LookupError, TypeError):
                is_good = False
            if not is_good:
                try:
                    content, text = self._slowly(line, key)
                except BadLine as error:
                    result.bad.append((number, str(error)))
                    continue
            result.documents += 1
            yield Document(line, content, text, number, begin)

    def _slowly(self, line: bytes, key: str) -> tuple[dict[str, Any], str]:
        """Return the object of a line and its text, with Python's own module, which takes more; else BadLine."""
        content = load_object(line)
        text = value_of(content, key) if key else ""
        if not isinstance(text, str):
            raise BadLine(f"{key!r} is {KINDS[type(text)]}; expected a text")
        if not self.takes_surrogates:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BadLine(f"{key!r} holds half of a surrogate pair, which is not a character") from None
        return content, text
