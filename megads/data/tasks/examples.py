"""What the readers of all tasks share: an example, a file of them, and how texts are cleaned."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.preprocess.input.files import Source, read_pieces
from megads.errors import DataError
from megads.storage.open_file import open_regular
from megads.storage.reading import Bounds, parse_json
from megads.text.units import size as size_text

MOST_LINE = 64 << 20
"""Bytes of a line."""

_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True)
class Example:
    """One labelled example: a pair of texts to classify, or one pair for every choice."""

    pairs: tuple[tuple[str, str | None], ...]  # the second text is None where there is only one
    label: int  # number of the class, or of the right choice; 0 in a file without labels
    cuts_first: bool = False  # whether the first text has a limit of its own, as a question with its answer has


@dataclass(frozen=True)
class TaskFile:
    """The examples of one file or folder."""

    path: str
    examples: list[Example]
    notes: tuple[str, ...] = ()  # lines worth showing to the user
    has_labels: bool = True


def clean_text(text: str) -> str:
    """Return ``text`` as Megatron-LM's tasks read it: one blank between words, none before the end of a sentence."""
    text = _BLANKS.sub(" ", text.replace("\n", " "))
    for _ in range(3):
        text = text.replace(" . ", ". ")
    return text


def lines_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield of every line of a text file where it is, as ``FILE:12``, and its text without the line end.

    The file may be compressed with gzip, xz, zstd or bzip2.

    Raises:
        DataError: the file cannot be read or unpacked, or a line is not UTF-8 or endless.
    """
    handle, size = open_regular(path, missing=lambda: "pass the file of the task", expected="expected a text file")
    os.close(handle)
    number = 0
    try:
        for number, line in enumerate(_lines(read_pieces(Source(path, "plain", size, 0))), 1):
            where = f"{path}:{number}"
            if len(line) > MOST_LINE:
                raise DataError(f"{where}: a line of more than {size_text(MOST_LINE)}; expected one example per line")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
            yield where, text.rstrip("\r\n")
    except DataError as error:
        raise DataError(str(error).removeprefix("--input ")) from None


def _lines(pieces: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
    """Yield the lines of a text in pieces; of an endless one as much as shows it."""
    parts: list[bytes] = []  # of a line that goes on
    for piece, _ in pieces:
        first, *others = piece.split(b"\n")
        parts.append(first)
        if others:
            *lines, last = b"".join(parts), *others
            yield from lines
            parts = [last]
        elif sum(map(len, parts)) > MOST_LINE:
            break
    if any(parts):
        yield b"".join(parts)


def object_of(where: str, line: str, expected: str) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
        DataError: there is none, or it has what is no character.
    """
    try:
        found = parse_json(line)
    except Bounds as error:
        raise DataError(f"{where}: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected {expected}")
    if "\\u" in line:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(f"{where}: a text has half of a surrogate pair, which is no character") from None
    return found


def require_examples(path: str | Path, examples: list[Example]) -> None:
    """Refuse a file without examples.

    Raises:
        DataError: there is none.
    """
    if not examples:
        raise DataError(f"{path}: has no examples")
