"""``megads corpus group-duplicates`` and ``remove-duplicates``."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

import orjson

from megads.data.corpus.duplicates.find import id_of
from megads.data.corpus.duplicates.groups import THRESHOLD, Groups
from megads.data.corpus.frame.step import DROPPED, KEPT, Document, Drop, Finished, Joined, Result, Step, dump
from megads.data.preprocess.input.json_lines import BadLine
from megads.errors import DataError
from megads.storage.open_file import open_binary

_OFTEN = 1000  # lines between two looks whether to stop


class GroupDuplicates(Step):
    """Groups of the documents that are connected by pairs of at least ``threshold``."""

    name = "group-duplicates"
    key = ""

    def __init__(self, threshold: float = THRESHOLD):
        self._threshold = threshold

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {"threshold": self._threshold}

    def judge(self, document: Document, result: Result) -> None:
        """Check a line of ``{id: [{other id: similarity}, ...]}``."""
        for others in document.content.values():
            if not isinstance(others, list) or not all(
                isinstance(each, dict) and all(isinstance(value, int | float) for value in each.values())
                for each in others
            ):
                raise BadLine("is not of the form {id: [{id: similarity}, ...]}, which find-duplicates writes")

    def finish(self, joined: Joined) -> Finished:
        """Join the pairs and write the groups."""
        groups = Groups(self._threshold)
        with open(joined.streams[KEPT], "rb") as lines:
            for number, line in enumerate(lines):
                if not number % _OFTEN:
                    joined.check()
                groups.add(json.loads(line))
        output, members, count = joined.folder / "groups", 0, 0
        with open(output, "wb") as out:
            for label, names in groups.found():
                out.write(dump({str(label): names}) + b"\n")
                members, count = members + len(names), count + 1
        joined.counts.update(groups=count, members=members, duplicates=members - count)
        return Finished(output, joined.streams[DROPPED])


class RemoveDuplicates(Step):
    """Documents without those that are in a group but not its first member.

    Args:
        groups: file that :class:`GroupDuplicates` made.
        key: of the identifier of a document.
    """

    name = "remove-duplicates"
    key = ""
    takes_surrogates = True

    def __init__(self, groups: str, key: str):
        self._groups, self._key = groups, key

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {"groups": self._groups, "groups_sha256": self._removed[1], "key": self._key}

    def load(self) -> None:
        """Read the groups once for all workers."""
        _ = self._removed

    def judge(self, document: Document, result: Result) -> Drop | None:
        """Drop a document that is not the first of its group."""
        name = id_of(document.content, self._key)
        return Drop("duplicate") if name in self._removed[0] else None

    @cached_property
    def _removed(self) -> tuple[frozenset[str], str]:
        """Identifiers of the removed documents, and a digest of the file."""
        removed, digest = set(), hashlib.sha256()
        try:
            with open_binary(self._groups) as file:
                for number, line in enumerate(file, 1):
                    digest.update(line)
                    if line.strip():
                        removed.update(self._members(line, number))
        except OSError as error:
            raise DataError(f"{self._groups}: cannot be read: {str(error.strerror).lower()}") from None
        return frozenset(removed), digest.hexdigest()[:16]

    def _members(self, line: bytes, number: int) -> list[str]:
        """Return all members of the groups of a line but the first of each."""
        try:
            content = orjson.loads(line)
            found = [name for names in content.values() if isinstance(names, list) for name in names[1:]]
            is_good = all(isinstance(names, list) for names in content.values())
        except (ValueError, AttributeError):
            found, is_good = [], False
        if not is_good or not all(isinstance(name, str) for name in found):
            raise DataError(
                f"{self._groups}:{number}: is not of the form {{number: [id, ...]}}; expected a file of "
                "`megads corpus group-duplicates`"
            )
        return found
