"""Rows of ``metrics.jsonl`` as text: a JSON object on one line, whose last key is the CRC-32 of the text before it.

Every reader of rows parses them here. A line that differs from its checksum is skipped and counted. Rows without
one (earlier versions, other programs) are read as they are.
"""

from __future__ import annotations

import math
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import orjson

from megads.errors import plain
from megads.monitor.log import LOG
from megads.storage.open_file import open_binary
from megads.storage.reading import parse_json
from megads.text.plural import plural

KEY = "crc32"
_NAME, _DIGITS = b', "crc32": "', b'%08x"}'
_TAIL = _NAME + _DIGITS
_LENGTH = len(_TAIL % 0)
_CUT = re.compile(rb'[0-9a-f]{0,8}"?')  # of a line that is still being written, or whose writer was killed
_REPORTED: set[str] = set()
_LARGEST = int(sys.float_info.max)


def sealed(text: str) -> str:
    """Return the text of a row, a JSON object with at least one key, with its checksum as the last key."""
    return text[:-1] + (_TAIL % zlib.crc32(text[:-1].encode())).decode()


class Damage:
    """Lines of a file that differ from their checksums: how many, and the bytes at which the first and last begin.

    Args:
        only_rows: whether no other program writes into the file, so that a whole line that is no JSON object (half
            a row, binary garbage) is damage, too.
    """

    def __init__(self, *, only_rows: bool = False) -> None:
        self.count, self.first, self._last = 0, -1, -1
        self.only_rows = only_rows

    def add(self, offset: int) -> None:
        """Count the line at ``offset``, once; offsets ascend."""
        if offset > self._last:
            self.count, self._last = self.count + 1, offset
            self.first = offset if self.first < 0 else self.first

    def extend(self, later: Damage) -> None:
        """Add that of a later part of the same file."""
        if later.count:
            self.count, self._last = self.count + later.count, later._last
            self.first = later.first if self.first < 0 else self.first

    def text(self, path: Path) -> str:
        """Return a line about the file, empty when every line is as it was written."""
        if not self.count:
            return ""
        lines = plural(self.count, "damaged row")
        why = "CRC-32 differs, or no JSON object" if self.only_rows else "CRC-32 differs"
        return f"{lines} skipped ({why}), the first on line {_line_number(path, self.first)}"

    def report(self, path: Path) -> None:
        """Log one line if there is damage; of a file of our own, which is read again and again, only once."""
        if not self.count:
            return
        line = f"{plain(str(path))}: {self.text(path)}"
        if self.only_rows and line in _REPORTED:
            return
        _REPORTED.add(line)
        LOG.warning("%s", line)


def forget_reports() -> None:
    """Report all damage again, as a new command would."""
    _REPORTED.clear()


def _line_number(path: Path, offset: int) -> int:
    number, left = 1, offset
    with open_binary(path) as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            number, left = number + block.count(b"\n"), left - len(block)
    return number


def parse_rows(lines: bytes, damage: Damage, offset: int = 0) -> list[dict[str, Any]]:
    """Return the objects of ``lines`` without their checksums; a line that is no object is skipped.

    Args:
        lines: text, whose last line may have no end.
        damage: takes the lines that differ from their checksums.
        offset: of ``lines`` in their file.
    """
    texts = lines.removesuffix(b"\n").split(b"\n")
    bodies = [text[:-_LENGTH] for text in texts]
    if [text[-_LENGTH:] for text in texts] == [_TAIL % value for value in map(zlib.crc32, bodies)]:
        return _objects(b"},".join(bodies) + b"}") or []
    kept = []
    has_end = lines.endswith(b"\n")
    for number, line in enumerate(texts, 1):
        text = line.strip()
        is_other = damage.only_rows and (has_end or number < len(texts)) and text and _object(text) is None
        if is_other or _is_damaged(text):
            damage.add(offset)
        elif text:
            kept.append(text)
        offset += len(line) + 1
    rows = _objects(b",".join(kept))
    if rows is None:
        rows = [row for text in kept if (row := _object(text)) is not None]
    for row in rows:
        row.pop(KEY, None)
    return rows


def _is_damaged(text: bytes) -> bool:
    """Return whether a line differs from its checksum; half a line, or one without a checksum, does not."""
    body, name, end = text.rpartition(_NAME)
    if not name:  # none, or its key changed
        return text[-_LENGTH + len(_NAME) :] == _DIGITS % zlib.crc32(text[:-_LENGTH])
    return end != _DIGITS % zlib.crc32(body) and not _CUT.fullmatch(end)


def _objects(joined: bytes) -> list[dict[str, Any]] | None:
    try:
        rows = orjson.loads(b"[" + joined + b"]")
    except orjson.JSONDecodeError:
        return None
    return [row for row in rows if type(row) is dict]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)  # also takes NaN, which other writers leave
    except ValueError:
        return None
    if type(row) is not dict:
        return None
    # As 1e999: no reader computes with an integer that no float holds.
    return {key: math.inf if isinstance(each, int) and abs(each) > _LARGEST else each for key, each in row.items()}
