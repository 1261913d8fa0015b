from __future__ import annotations

import json
import os
import resource
from dataclasses import asdict, replace

import pytest

from megads.data.formats.record import FORMAT, Record, read_record, record_path, write_record
from megads.errors import DataError

RECORD = Record("f" * 64, "HFTokenizer", "t.json", 100, 7, 2, 3, 8, "sentence", "text", ("a.jsonl", "b.jsonl"))


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, eod=None, sources=())])
def test_a_record_is_read_as_it_was_written(tmp_path, record):
    write_record(tmp_path / "x.bin", record)
    assert [path.name for path in tmp_path.iterdir()] == ["x.info.json"]
    assert read_record(tmp_path / "x") == read_record(str(tmp_path / "x.idx")) == record
    assert read_record(tmp_path / "y") is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"documents": "2"}, "documents is '2'"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"eod": "0"}, "eod is '0'"),
        ({"tokenizer": 5}, "tokenizer is 5"),
        ({"sources": [1]}, "sources is"),
        ({"sources": 1}, "TypeError"),
        ({"colour": "red"}, "colour"),
        ({"format": 9}, "format 9, expected 1; it was made by a newer megads"),
    ],
)
def test_values_of_the_wrong_type_are_refused(tmp_path, change, expected):
    record_path(tmp_path / "x").write_text(json.dumps({"format": FORMAT, **asdict(RECORD), **change}))
    with pytest.raises(DataError, match=r"x\.info\.json") as error:
        read_record(tmp_path / "x")
    assert expected in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b"\xff", b'{"format": 1}', b"[" * 100_000])
def test_what_is_no_record_is_refused(tmp_path, content):
    record_path(tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.info\.json: is not a valid record .*; remove it to use the data without"):
        read_record(tmp_path / "x")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    make(record_path(tmp_path / "x"))
    with pytest.raises(DataError, match=r"x\.info\.json: is not a valid record \(is a .*, expected a regular file"):
        read_record(tmp_path / "x")


def test_a_full_disk_is_one_line(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DataError, match=r"x\.info\.json: cannot be written: File too large; the data is complete"):
            write_record(tmp_path / "x", RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
