"""From lines of JSON to texts."""

from __future__ import annotations

import pytest

from megads.data.preprocess.input.json_lines import parse_lines
from tests.data.preprocess.conftest import GOOD, OUT, golden, tree


def test_line_of_a_text():
    data = b'{"t": "a"}\n\n{"t": ["b", "c"]}\nbad\n{"t": []}\n{"t": "d"}\n'
    parsed = parse_lines(data, ("t",))
    assert parsed.texts == [["a", "b", "c", "d"]]
    assert parsed.counts == [[1, 2, 0, 1]]
    assert [parsed.line_of(0, text) for text in range(4)] == [0, 2, 2, 5]
    assert [number for number, _ in parsed.bad] == [3]
    assert (parsed.documents, parsed.lines) == (4, 6)


LINES = {
    "not JSON": (b"{text: 1}", "is not JSON (expecting property name enclosed in double quotes, character 1)"),
    "cut short": (b'{"text": "abc', "is not JSON (unterminated string starting at, character 9)"),
    "two objects": (b'{"text": "a"}{"text": "b"}', "is not JSON (extra data, character 13)"),
    "plain text": (b"hello", "is not JSON (expecting value, character 0)"),
    "control character": (b'{"text": "a\x01b"}', "is not JSON (invalid control character at, character 11)"),
    "bad escape": (b'{"text": "\\x41"}', "is not JSON (invalid \\escape, character 10)"),
    "array of the whole file": (b"[", "is not JSON (expecting value, character 1)"),
    "a list": (b'["text"]', "is a list, not a JSON object; write one object on each line"),
    "a text": (b'"text"', "is a text, not a JSON object; write one object on each line"),
    "a number": (b"17", "is a number, not a JSON object; write one object on each line"),
    "null": (b"null", "is null, not a JSON object; write one object on each line"),
    "invalid UTF-8": (b'{"text": "\xff\xfe"}', "is not UTF-8 (byte 10 of the line is 0xff)"),
    "overlong UTF-8": (b'{"text": "\xc0\xaf"}', "is not UTF-8 (byte 10 of the line is 0xc0)"),
    "surrogate in UTF-8": (b'{"text": "\xed\xa0\x80"}', "is not UTF-8 (byte 10 of the line is 0xed)"),
    "half a character": (b'{"text": "\\ud800"}', "'text' holds half of a surrogate pair, which is not a character"),
    "half in a list": (b'{"text": ["\\udc00"]}', "'text' holds half of a surrogate pair, which is not a character"),
    "missing key": (b'{"txt": "a", "id": 1}', "has no key 'text'; it has 'txt', 'id'"),
    "empty object": (b"{}", "has no key 'text'; it has none"),
    "value null": (b'{"text": null}', "'text' is null; expected a text or a list of texts"),
    "value number": (b'{"text": 1.5}', "'text' is a number; expected a text or a list of texts"),
    "value true": (b'{"text": true}', "'text' is true or false; expected a text or a list of texts"),
    "value object": (b'{"text": {}}', "'text' is an object; expected a text or a list of texts"),
    "list of numbers": (b'{"text": ["a", 1]}', "'text' is a list that holds a number; expected a text or a list of"),
    "list of lists": (b'{"text": [["a"]]}', "'text' is a list that holds a list; expected a text or a list of texts"),
    "nested": (b'{"text": ' + b"[" * 100_000, "is JSON nested too deeply"),
    "zeros": (b"\0" * 50, "is not JSON (expecting value, character 0)"),
    "BOM in the middle": (b'\xef\xbb\xbf{"text": "a"}', "is not JSON (unexpected UTF-8 BOM (decode using utf-8-sig)"),
    "huge number": (b'{"text": 1' + b"0" * 5000 + b"}", "is not JSON (Exceeds the limit (4300"),
}


@pytest.mark.parametrize("name", LINES)
def test_bad_line(megads, tokenizer, name):
    line, told = LINES[name]
    (megads.folder / "a.jsonl").write_bytes(GOOD * 7 + b"\n" + line + b"\n" + GOOD)
    share = ["--workers", 2, "--block-bytes", 60] if len(line) < 1000 else []
    before = tree(megads.folder)
    done = megads("--tokenizer-model", tokenizer, "--output-prefix", "out", "--input", "a.jsonl", *share)
    assert done.code == 2, done.err
    assert done.error.startswith("megads: a.jsonl:9: "), done.err
    assert told in done.error
    assert done.error.endswith("; correct it, or skip up to N such lines with --max-bad-lines N")
    assert tree(megads.folder) == before


def test_what_pythons_json_takes_is_taken(megads, tokenizer):
    (megads.folder / "a.jsonl").write_text(
        '{"score": NaN, "text": "a b"}\r\n  \n{"text": "c", "big": 1e999, "n": -Infinity}'
    )
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer)
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, ["a b", "c"], eod=False)[0]
