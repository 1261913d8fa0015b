"""Steps that keep every document: joined into one file, with an id each."""

from __future__ import annotations

import json
from typing import Any

from megads.data.corpus.frame.step import KEPT, Document, Lines, Result, Step
from megads.errors import ConfigError

_DIGITS = 10
_HOLE = b"0" * _DIGITS
MOST = 10**_DIGITS - 1
"""Documents that can have an id."""


class Merge(Step):
    """Files of JSON lines, one after the other, each line as it is."""

    name = "merge"
    key = ""
    takes_surrogates = True

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {}

    def judge(self, document: Document, result: Result) -> None:
        """Keep every document."""
        return


class AddId(Step):
    """Each document gets ``"adlr_id": "PREFIX-0000000001"``, counted from 1 in the order of the input."""

    name = "add-id"
    key = ""
    takes_surrogates = True
    is_numbered = True

    def __init__(self, prefix: str, key: str = "adlr_id"):
        if not key:
            raise ConfigError("--id-key: is empty; pass the key of the id")
        self._prefix, self._key = prefix, key
        try:
            self._start = json.dumps(f"{prefix}-", ensure_ascii=False).encode()[:-1]
            self._name = json.dumps(key, ensure_ascii=False).encode() + b": "
        except UnicodeEncodeError:
            raise ConfigError(f"--id-prefix {prefix!r}: is not text in UTF-8") from None
        self._places: list[list[int]] = []  # of the blocks that wait, in order

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {"id_prefix": self._prefix, "id_key": self._key}

    def block(self, lines: Lines) -> Result:
        """Return the documents of a block with room for a number in each."""
        result = Result([[] for _ in range(self.num_streams)])
        kept, places, at = result.outputs[KEPT], [], 0
        for document in self.documents(lines, result):
            begin, end = self._split(document)
            kept += (begin, self._start, _HOLE, end)
            places.append(at + len(begin) + len(self._start))
            at = places[-1] + _DIGITS + len(end)
            result.count("kept")
        self._places.append(places)
        return result

    def place(self, outputs: list[bytes], documents: int) -> list[bytes]:
        """Return the block with its numbers, from ``documents`` + 1 on."""
        places, text = self._places.pop(0), bytearray(outputs[KEPT])
        if documents + len(places) > MOST:
            raise ConfigError(f"there are more than {MOST:,} documents, and an id has {_DIGITS} digits")
        for number, place in enumerate(places, start=documents + 1):
            text[place : place + _DIGITS] = b"%010d" % number
        return [bytes(text), *outputs[1:]]

    def _split(self, document: Document) -> tuple[bytes, bytes]:
        """Return what stands before and behind the text of the id."""
        if self._key in document.content:  # keeps its place, as in Python's own dict
            mark = "\0id"
            while json.dumps(mark).encode() in document.replaced():
                mark += "\0"
            line = document.replaced(**{self._key: mark})
            begin, _, end = line.partition(json.dumps(mark).encode())
            return begin, b'"' + end + b"\n"
        inner = document.line[:-1].rstrip()
        return inner + (b"" if inner == b"{" else b", ") + self._name, b'"}\n'
