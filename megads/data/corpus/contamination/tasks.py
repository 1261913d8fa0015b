"""Texts of tasks, from the files in which they are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megads.errors import DataError
from megads.storage.reading import Bounds, parse_json, read_bytes

_MOST = 4 << 30  # bytes of a task's file

KEYS: Mapping[str, str] = {
    "lambada": "text",
    "squad": "question",
    "natural_questions": "question.text",
    "triviaqa": "question",
    "webqa": "question",
    "race": "question",
    "drop": "question",
    "coqa": "questions",
    "piqa": "goal",
}
"""Task -> key of its texts, as Megatron-LM reads them."""


def task_texts(name: str, path: str, key: str = "") -> Iterator[str]:
    """Yield the texts of a task.

    Args:
        name: of the task; one of :data:`KEYS`, or any other.
        path: JSON lines, or one JSON document in SQuAD's layout or a list of rows.
        key: of the text in a row, "a.b" for one inside another; "": the one of the task, or ``text``.

    Raises:
        DataError: the file cannot be read, is not JSON, or a row lacks the key.
    """
    key = key or KEYS.get(name, "text")
    count = 0
    for where, row in _rows(name, path):
        for text in _texts(row, key, where):
            count += 1
            yield text
    if not count:
        raise DataError(f"{path}: holds no text of task {name}; expected JSON lines with key {key!r}")


def _rows(name: str, path: str) -> Iterator[tuple[str, Any]]:
    """Yield rows, and where each is."""
    try:
        content = read_bytes(path, _MOST)
    except OSError as error:
        reason = str(error.strerror or error).lower()
        raise DataError(f"{path}: task {name}: cannot be read: {reason}; pass --task-path {name}=FILE") from None
    lines = content.split(b"\n")
    whole = _whole(content) if len(lines) < 3 or content.lstrip()[:1] == b"[" or lines[0].strip() == b"{" else None
    if whole is not None:
        yield from ((f"{path}: entry {number}", row) for number, row in enumerate(whole, 1))
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", parse_json(line)
            except Bounds as error:
                raise DataError(f"{path}:{number}: task {name}: {error}") from None


def _whole(content: bytes) -> list[Any] | None:
    """Return the rows of a file that is one JSON document; None if it is not: it may be JSON lines."""
    try:
        found = parse_json(content)
    except Bounds:
        return None
    if isinstance(found, list):
        return found
    if not isinstance(found, dict) or not isinstance(found.get("data"), list):
        return None
    return list(_nested(found["data"]))


def _nested(value: Any) -> Iterator[Any]:
    """Yield the innermost objects of SQuAD's and CoQA's layout: articles, paragraphs, questions."""
    for each in value:
        inner = next((each[key] for key in ("paragraphs", "qas") if isinstance(each, dict) and key in each), None)
        if isinstance(inner, list):
            yield from _nested(inner)
        else:
            yield each


def _texts(row: Any, key: str, where: str) -> list[str]:
    """Return the text of a row, or its several texts."""
    value = row
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            known = ", ".join(map(repr, list(value)[:8])) if isinstance(value, dict) else ""
            raise DataError(f"{where}: has no key {key!r}{f'; it has {known}' if known else ''}; pass --task-key")
        value = value[part]
    values = value if isinstance(value, list) else [value]
    # CoQA's own file has objects where the data set has texts.
    texts: list[Any] = [each.get("input_text") if isinstance(each, dict) else each for each in values]
    if not all(isinstance(each, str) for each in texts):
        raise DataError(f"{where}: {key!r} is not a text or a list of texts; pass --task-key")
    return texts
