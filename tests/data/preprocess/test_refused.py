"""What is wrong ends in one line that says where and what would work, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import struct
from pathlib import Path

import pytest
import zstandard

from tests.data.preprocess.conftest import texts, write_jsonl

GOOD = b'{"text": "a good line"}\n'

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


def refused(megads, tokenizer: Path, *words: object, told: str, **options: object) -> None:
    """Check that the call ends with 2 and one line, and leaves the folder as it was."""
    before = tree(megads.folder)
    done = megads("--tokenizer-model", tokenizer, "--output-prefix", "out", *words, **options)
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


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


def pairs(raw: bytes) -> dict[str, tuple[bytes, str]]:
    """Return files that cannot be read, and the message for each."""
    packed, long = gzip.compress(raw), zstandard.ZstdCompressor(write_checksum=True).compress(raw)
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 255
    whole = "is incomplete; copy or make the file again"
    return {
        "a.gz": (packed[:-20], f"a.gz: is truncated: its gzip data {whole}"),
        "head.gz": (packed[:12], f"head.gz: is truncated: its gzip data {whole}"),
        "b.gz": (bytes(broken), "b.gz: broken gzip data (Error -3 while decompressing data"),
        "c.gz": (packed + b"some more, which is no gzip data", "c.gz: has trailing bytes after its gzip data"),
        "a.xz": (lzma.compress(raw)[:-30], f"a.xz: is truncated: its xz data {whole}"),
        "b.xz": (lzma.compress(raw)[:-3] + b"abc", "b.xz: broken xz data (Corrupt input data)"),
        "a.zst": (long[:-9], f"a.zst: is truncated: its zstd data {whole}"),
        "b.zst": (long[:-1] + bytes([long[-1] ^ 255]), "b.zst: broken zstd data ("),
        "a.parquet": (b"PAR1" + raw, "--input a.parquet: is a parquet file; expected JSON lines in UTF-8"),
        "a.zip": (b"PK\x03\x04" + raw, "--input a.zip: is a zip archive; expected JSON lines in UTF-8"),
        "a.utf16": (raw.decode().encode("utf-16"), "--input a.utf16: is UTF-16 text; expected JSON lines"),
        "a.idx": (b"MMIDIDX\0\0", "--input a.idx: is an index of token files; expected JSON lines"),
        "empty": (b"", "--input: it has no documents under the key 'text'; nothing is written"),
        "blank": (b"\n  \n\r\n", "--input: it has no documents under the key 'text'; nothing is written"),
        "no text": (b'{"text": ""}\n' * 3, "--input: none of its 3 documents has a token under the key 'text'"),
        "empty.gz": (gzip.compress(b""), "--input: it has no documents under the key 'text'; nothing is written"),
    }


FILES = pairs(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(3000)))


@pytest.mark.parametrize("name", FILES)
def test_bad_file(megads, tokenizer, name):
    data, told = FILES[name]
    (megads.folder / name).write_bytes(data)
    refused(megads, tokenizer, "--input", name, "--workers", 2, told=told)


CALLS = {
    "no such file": (["--input", "no.jsonl"], "--input no.jsonl: no such file or directory"),
    "a folder": (["--input", "a folder"], "--input a folder: is a folder; pass its files, as in 'a folder/*.jsonl'"),
    "pattern": (["--input", "no*.jsonl"], "--input no*.jsonl: no file fits this pattern"),
    "stdin twice": (["--input", "-", "-"], "--input -: stdin is listed twice, and can be read only once"),
    "split stdin": (["--input", "-", "--partitions", 2], "--input -: a pipe cannot be read by 2 processes; use one"),
    "no input": ([], "Missing option '--input'"),
    "input without a word": (["--input", "--append-eod"], "Option '--input' requires an argument"),
    "prefix is a folder": (["--input", "a", "--output-prefix", "x/"], "--output-prefix 'x/': names a folder; pass"),
    "prefix below a file": (["--input", "a", "--output-prefix", "a/x"], "a/x_text_document: cannot be written: "),
    "key with a slash": (["--input", "a", "--json-keys", "b/c"], "--json-keys 'b/c': cannot be part of a file name"),
    "key twice": (["--input", "a", "--json-keys", "b", "b"], "--json-keys b b: names a key twice"),
    "newlines": (["--input", "a", "--keep-newlines"], "--keep-newlines needs"),
    "workers": (["--input", "a", "--workers", 0], "Invalid value for '--workers': 0 is not in the range x>=1"),
    "impl": (["--input", "a", "--dataset-impl", "torch"], "Invalid value for '--dataset-impl': 'torch' is not one of"),
    "type": (["--input", "a", "--tokenizer-type", "GPT"], "Invalid value for '--tokenizer-type': 'GPT' is not one of"),
    "unknown option": (["--input", "a", "--shuffle"], "No such option"),
    "encoder": (["--input", "a", "--encoder", "magic"], "--encoder magic: unknown; one of auto, "),
    "tokenizer": (["--input", "a", "--tokenizer-model", "no.json"], "TOKENIZER_MODEL no.json: "),
    "eod of WordPiece": (
        ["--input", "a", "--append-eod", "--tokenizer-type", "BertWordPieceCase"],
        "TOKENIZER_TYPE=BertWordPieceCase has no end-of-document token",
    ),
    "key": (["--input", "a", "--json-keys", "content"], "a:1: has no key 'content'; it has 'id', 'text'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_call(megads, tokenizer, name):
    words, told = CALLS[name]
    write_jsonl(megads.folder / "a", ["some text"])
    (megads.folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nsome\ntext\n")
    (megads.folder / "a folder").mkdir()
    more = ["--tokenizer-model", "", "--vocab-file", "vocab.txt"] if "WordPiece" in name else []
    refused(megads, tokenizer, *words, *more, told=told)


@pytest.mark.parametrize(("text", "told"), [("1 2 x", "is not a row of token ids"), ("1 2 101", "ids must be 0..100")])
def test_text_that_the_tokenizer_refuses_is_located(megads, text, told):
    write_jsonl(megads.folder / "a.jsonl", [*["1 2 3"] * 20, text, "4"])
    words = ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-type", "NullTokenizer", "--vocab-size", 100]
    done = megads(*words, "--workers", 2, "--block-bytes", 100)
    assert done.code == 2
    assert done.error.startswith("megads: a.jsonl:21: NullTokenizer: ")
    assert told in done.error
    assert sorted(os.listdir(megads.folder)) == ["a.jsonl"]


def test_first_bad_line_of_the_input_is_told_whoever_finds_one(megads, tokenizer):
    (megads.folder / "a.jsonl").write_bytes(GOOD * 50 + b"first\n" + GOOD * 3 + b"second\n" * 40)
    for share in (["--workers", 1], ["--workers", 3, "--block-bytes", 40]):
        refused(megads, tokenizer, "--input", "a.jsonl", *share, told="a.jsonl:51: is not JSON")


def test_bad_line_in_a_part_that_begins_in_the_middle(megads, tokenizer):
    (megads.folder / "a.jsonl").write_bytes(GOOD * 100 + b"bad\n" + GOOD)
    refused(megads, tokenizer, "--input", "a.jsonl", "--partitions", 3, told="a.jsonl:101: is not JSON")


def test_what_is_there_is_kept_unless_told_otherwise(megads, tokenizer):
    write_jsonl(megads.folder / "a.jsonl", ["some text"])
    write_jsonl(megads.folder / "b.jsonl", ["other"])
    words = ["--output-prefix", "out", "--tokenizer-model", tokenizer]
    megads.made("--input", "a.jsonl", *words)
    before = megads.files()
    refused(megads, tokenizer, "--input", "b.jsonl", told="out_text_document.idx: already exists; use another")
    assert megads.files() == before
    megads.made("--input", "b.jsonl", *words, "--overwrite")
    assert megads.files() != before
    struct.unpack_from("<9sQBQQ", megads.files()["out_text_document.idx"])


@pytest.mark.parametrize("limit", [700, 4000, 20_000])
def test_disk_full(megads, tokenizer, limit):
    """Wherever it gets full: one line, nothing under the final names, and the next call makes it all."""
    write_jsonl(megads.folder / "a.jsonl", texts(2000))
    words = ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-model", tokenizer, "--workers", 2]
    share = ["--block-bytes", 3000, "--commit-seconds", 0]
    done = megads(*words, *share, file_limit=limit)
    assert done.code == 2, done.err
    assert done.error.startswith("megads: out_text_document: cannot be written: file too large; free some space"), (
        done.err
    )
    assert megads.files() == {}
    assert megads.hidden() == []
    megads.made(*words)
    assert sorted(megads.files()) == ["out_text_document.bin", "out_text_document.idx"]
