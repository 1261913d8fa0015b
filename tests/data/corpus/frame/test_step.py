"""A step sees every document once, bad lines are named, and lines stay as they are unless they change."""

from __future__ import annotations

import json

import pytest

from megads.data.corpus.frame.step import DROPPED, KEPT, Document, Drop, Lines, Result, Step, drop_line, dump


class Short(Step):
    """Drops texts of one character, shouts those of two, doubles those of three, keeps others."""

    name = "short"

    def options(self):
        return {}

    def judge(self, document, result):
        if len(document.text) < 2:
            return Drop("short", f"{len(document.text)} characters")
        if len(document.text) == 2:
            return [document.replaced(text=document.text.upper())]
        return [document.line] * 2 if len(document.text) == 3 else None


def made(step: Step, *lines: bytes) -> Result:
    return step.block(Lines(b"\n".join(lines), 0, 0))


def outputs(result: Result) -> tuple[bytes, ...]:
    return tuple(b"".join(pieces) for pieces in result.outputs)


def test_documents_are_kept_changed_and_dropped():
    long, big = b'{"text" : "lo\\u0065ng","n": 1e2}', 2**70
    two = json.dumps({"n": big, "text": "ab", "x": "\u00fc"}).encode()
    result = made(Short(), long, b"", b" \r", two + b"\r", b'{"text":"abc"}', b'{ "a": [], "text": "" }')
    kept, dropped = outputs(result)
    assert kept == (long + b"\n" + f'{{"n": {big}, "text": "AB", "x": "\u00fc"}}\n'.encode() + b'{"text":"abc"}\n' * 2)
    assert dropped == b'{ "a": [], "text": "", "dropped": {"reason": "short", "detail": "0 characters"}}\n'
    assert (result.documents, result.lines, result.bad) == (4, 6, [])
    assert result.counts == {"kept": 3, "changed": 2, "dropped/short": 1, "dropped_bytes/short": 24}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "is not JSON ("),
        (b"[1]", "is a list, not a JSON object"),
        (b'"text"', "is a text, not a JSON object"),
        (b'{"body": 1}', "has no key 'text'; it has 'body'"),
        (b'{"text": null}', "'text' is null; expected a text"),
        (b'{"text": ["a"]}', "'text' is a list; expected a text"),
        (b'{"text": "\\ud800"}', "'text' holds half of a surrogate pair"),
        (b'{"text": "\xff"}', "is not UTF-8 (byte 10 of the line is 0xff)"),
    ],
)
def test_bad_lines(line, told):
    result = made(Short(), b'{"text": "long"}', line, b'{"text": NaN}', b'{"text": "long", "n": NaN}')
    assert [number for number, _ in result.bad] == [1, 2]
    assert result.bad[0][1].startswith(told)
    assert (result.documents, result.lines) == (2, 4)


def test_without_a_key_every_object_is_a_document():
    step = Short()
    step.key = ""
    step.judge = lambda document, result: None
    assert outputs(made(step, b"{}", b'{"a": 1}'))[KEPT] == b'{}\n{"a": 1}\n'
    assert made(step, b"7").bad == [(0, "is a number, not a JSON object; write one object on each line")]


def test_surrogates_for_a_step_that_takes_them():
    step = Short()
    step.takes_surrogates = True
    result = made(step, b'{"text": "\\ud800abcd"}')
    assert result.bad == []
    assert outputs(result)[KEPT] == b'{"text": "\\ud800abcd"}\n'


def test_lines_of_dropped_documents_are_json():
    for line in (b"{}", b"{ }", b'{"a": "}"}', b'{"a": {} }'):
        found = json.loads(drop_line(line, Drop("x")))
        assert found.pop("dropped") == {"reason": "x"}
        assert found == json.loads(line)
    assert DROPPED == 1


def test_dump():
    assert dump({"a": "\u00fc", "b": [1, 2]}) == '{"a": "\u00fc", "b": [1, 2]}'.encode()
    assert dump({"a": "\ud800"}) == b'{"a": "\\ud800"}'
    document = Document(b'{"text": "a", "n": 1}', {}, "a")
    assert document.replaced(text="b", m=2) == b'{"text": "b", "n": 1, "m": 2}'
