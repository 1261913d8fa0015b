"""What the readers of all tasks share: an example, a file of them, and how texts are cleaned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.errors import DataError
from megads.storage.open_file import open_regular

_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True)
class Example:
    """One labelled example: a pair of texts to classify, or one pair for every choice."""

    pairs: tuple[tuple[str, str | None], ...]  # the second text is None where there is only one
    label: int  # number of the class, or of the right choice
    cuts_first: bool = False  # whether the first text has a limit of its own, as a question with its answer has


@dataclass(frozen=True)
class TaskFile:
    """The examples of one file or folder."""

    path: str
    examples: list[Example]
    notes: tuple[str, ...] = ()  # lines worth showing to the user


def clean_text(text: str) -> str:
    """Return ``text`` as Megatron-LM's tasks read it: one blank between words, none before the end of a sentence."""
    text = _BLANKS.sub(" ", text.replace("\n", " "))
    for _ in range(3):
        text = text.replace(" . ", ". ")
    return text


def lines_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield of every line of a text file where it is, as ``FILE:12``, and its text without the line end.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    handle, _ = open_regular(path, missing=lambda: "pass the file of the task", expected="expected a text file")
    with open(handle, "rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
            yield where, text.rstrip("\r\n")


def require_examples(path: str | Path, examples: list[Example]) -> None:
    """Refuse a file without examples.

    Raises:
        DataError: there is none.
    """
    if not examples:
        raise DataError(f"{path}: has no examples")
