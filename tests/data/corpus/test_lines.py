"""Ids as Megatron's add_id.py gives them; lines that are joined stay as they are."""

from __future__ import annotations

import json

import pytest

from megads.data.corpus.frame.step import KEPT, Lines
from megads.data.corpus.lines import MOST, AddId, Merge
from megads.errors import ConfigError


def numbered(step: AddId, *lines: bytes, before: int = 0) -> list[bytes]:
    result = step.block(Lines(b"\n".join(lines), 0, 0))
    outputs = [b"".join(pieces) for pieces in result.outputs]
    placed = step.place(outputs, before)
    assert list(map(len, placed)) == list(map(len, outputs))
    return placed[KEPT].splitlines()


@pytest.mark.parametrize("prefix", ["owt", "", 'a"b\\', "\u00fc\n"])
def test_ids(prefix):
    values = [
        {},
        {"text": "a}"},
        {"adlr_id": 7, "text": "0000000000"},
        {"text": "\0id", "adlr_id": "\\u0000id", "n": 1},
    ]
    lines = numbered(AddId(prefix), *(json.dumps(value).encode() for value in values), b"{ }", before=41)
    expected = [
        json.dumps({**value, "adlr_id": f"{prefix}-{number:010d}"}, ensure_ascii=False)
        for number, value in enumerate([*values, {}], start=42)
    ]
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in expected]
    assert [list(json.loads(line)) for line in lines] == [list(json.loads(line)) for line in expected]


def test_lines_stay_as_they_are():
    lines = [b'{"a":1e2 ,  "b":"\\u00fc"}', b'{"a": 1, "a": 2}']
    assert numbered(AddId("p"), *lines)[0] == b'{"a":1e2 ,  "b":"\\u00fc", "adlr_id": "p-0000000001"}'
    result = Merge().block(Lines(b"\n".join(lines), 0, 0))
    assert b"".join(result.outputs[KEPT]).splitlines() == lines


def test_refused():
    with pytest.raises(ConfigError, match="an id has 10 digits"):
        numbered(AddId("p"), b"{}", before=MOST)
    with pytest.raises(ConfigError, match="--id-key: is empty"):
        AddId("p", "")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        AddId("\udc80")
