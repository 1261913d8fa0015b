"""From lines of JSON to texts, and to what is wrong with the others."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


@dataclass
class Parsed:
    """The documents of a block, for each key apart."""

    texts: list[list[str]]  # for each key, of all documents one after the other
    counts: list[list[int] | None]  # for each key, the number of texts of each document; None: always 1
    documents: int = 0  # the same for every key
    lines: int = 0  # blank and bad ones included
    bad: list[tuple[int, str]] = field(default_factory=list)  # (index among the block's lines, what is wrong)
    skipped: list[int] = field(default_factory=list)  # indices of the lines that are not a document: bad, blank

    def line_of(self, place: int, text: int) -> int:
        """Return the index of the line that the text with index ``text`` of key number ``place`` comes from."""
        line, counts = text, self.counts[place]
        if counts is not None:
            line = next(index for index, end in enumerate(itertools.accumulate(counts)) if text < end)
        for other in self.skipped:
            line += other <= line
        return line


def parse_lines(data: bytes, keys: tuple[str, ...], split: Callable[[str], list[str]] | None = None) -> Parsed:
    """Return the documents in ``data``, whole lines of JSON objects; the last one may lack its line break.

    A value is a text, or a list of texts (sentences that are split already). Lines of nothing but
    blanks are skipped. Whatever else Python's own json module takes, as NaN, is taken too.
    ``split`` cuts a text into sentences.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    parsed = Parsed([[] for _ in keys], [None for _ in keys], lines=len(lines))
    simple = _parse_simple(lines, keys[0], parsed) if len(keys) == 1 and split is None else 0
    for number in range(simple, len(lines)):
        _add(parsed, keys, number, lines[number], split)
    return parsed


def _parse_simple(lines: list[bytes], key: str, parsed: Parsed) -> int:
    """Read lines with one text each, and return how many there are before another one comes."""
    loads, append = orjson.loads, parsed.texts[0].append
    try:
        for line in lines:
            text = loads(line)[key]
            if text.__class__ is not str:
                break
            append(text)
    except (ValueError, LookupError, TypeError):
        pass
    parsed.documents = len(parsed.texts[0])
    return parsed.documents


def _add(
    parsed: Parsed, keys: tuple[str, ...], number: int, line: bytes, split: Callable[[str], list[str]] | None
) -> None:
    """Add one line, with every key or with none."""
    try:
        found = _values(line, keys)
    except BadLine as error:
        parsed.bad.append((number, str(error)))
        found = None
    if found is None:
        parsed.skipped.append(number)
        return
    for place, value in enumerate(found):
        texts = value if isinstance(value, list) else [value] if split is None else split(value)
        counts = parsed.counts[place]
        if counts is None and len(texts) != 1:
            counts = parsed.counts[place] = [1] * parsed.documents
        if counts is not None:
            counts.append(len(texts))
        parsed.texts[place] += texts
    parsed.documents += 1


class BadLine(Exception):
    """What is wrong with a line."""


def _values(line: bytes, keys: tuple[str, ...]) -> list[str | list[str]] | None:
    """Return the values of a line, None for a blank one."""
    if not line.strip():
        return None
    content = load_object(line)
    values: list[str | list[str]] = []
    for key in keys:
        value = value_of(content, key)
        if isinstance(value, list):
            wrong = next((each for each in value if not isinstance(each, str)), "")
            if not isinstance(wrong, str):
                kind = KINDS[type(wrong)]
                raise BadLine(f"{key!r} is a list that holds {kind}; expected a text or a list of texts")
        elif not isinstance(value, str):
            raise BadLine(f"{key!r} is {KINDS[type(value)]}; expected a text or a list of texts")
        try:
            ("".join(value) if isinstance(value, list) else value).encode("utf-8")
        except UnicodeEncodeError:
            raise BadLine(f"{key!r} holds half of a surrogate pair, which is not a character") from None
        values.append(value)
    return values


def load_object(line: bytes) -> dict[str, Any]:
    """Return the object that a line is; BadLine where it is none."""
    content = load_line(line)
    if not isinstance(content, dict):
        raise BadLine(f"is {KINDS[type(content)]}, not a JSON object; write one object on each line")
    return content


def value_of(content: dict[str, Any], key: str) -> Any:
    """Return what an object has under ``key``; BadLine where it has no such key."""
    if key not in content:
        known = ", ".join(map(repr, list(content)[:8]))
        raise BadLine(f"has no key {key!r}; it has {known or 'none'}")
    return content[key]


def load_line(line: bytes) -> object:
    """Return what a line of JSON holds; BadLine where it is not JSON."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    # Python's module takes NaN, Infinity and lone surrogates, and says better what is wrong.
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start} of the line is 0x{line[error.start]:02x})"
    except json.JSONDecodeError as error:
        reason = f"is not JSON ({error.msg[:1].lower() + error.msg[1:]}, character {error.pos})"
        if error.pos == 0 and line[:1].isalnum():
            reason += "; `megads data from-text` makes JSON lines of plain text files"
    except RecursionError:
        reason = "is JSON nested too deeply"
    except ValueError as error:
        reason = f"is not JSON ({error})"
    raise BadLine(reason)
