from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.record import Record, record_path, write_record
from megads.data.formats.writer import IndexedWriter
from megads.data.token_files import scan
from megads.data.token_files.scan import check, check_all
from tests.data.factory import write_dataset

LENGTHS = [7, 3, 12, 5, 9, 4]


@pytest.fixture
def prefix(tmp_path) -> str:
    """6 documents, uint16, tokens 100..139."""
    return write_dataset(tmp_path, LENGTHS, vocab=200, seed=None, start=100)


def _patch(path: str, start: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(content)


def test_sound_files_have_no_problems(prefix):
    assert check(prefix) == []
    assert check(prefix, 140) == []
    report = check_all([prefix])[0]
    assert (report.documents, report.sequences, report.tokens, report.highest) == (6, 6, 40, 139)


@pytest.mark.parametrize(
    ("start", "content", "expected"),
    [
        (34, struct.pack("<i", -7), "data.idx: sequence 0 has -7 tokens, the .bin file has only 40"),
        (34 + 4, struct.pack("<i", 2**31 - 1), "data.idx: sequence 1 has 2147483647 tokens"),
        (34 + 4, struct.pack("<i", 4), "data.idx: sequence 2 starts at 20, but the one before it ends at 22"),
        (58 + 16, struct.pack("<q", 22), "data.idx: sequence 2 starts at 22, but the one before it ends at 20"),
        (106 + 8, struct.pack("<q", 3), "data.idx: document 1 runs from sequence 3 to 2, expected a start"),
        (106 + 16, struct.pack("<q", -(2**63)), "data.idx: document 1 runs from sequence 1 to -9223372036854775808"),
        (106 + 16, struct.pack("<q", 2**63 - 1), "data.idx: document 1 runs from sequence 1 to 9223372036854775807"),
        (106, struct.pack("<q", 1), "data.idx: broken document index: it runs from 1 to 6"),
        (17, b"\6", "data.idx: dtype code 6 is floats"),
    ],
)
def test_each_rule_of_the_index(prefix, start, content, expected):
    _patch(prefix + ".idx", start, content)
    problems = check(prefix)
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("start", "number", "expected"),
    [
        (56 + 8, 2, "sequence 1 has its size at 2, expected 1"),
        (88 + 8, 3, "sequence 1 starts at 3, but the one before it ends at 2"),
        (88 + 24, 7, "its sequences have 6 tokens and end at 7, the .bin file has 6"),
        (120, 2**62, "sequence 0 has 4611686018427387904 tokens"),
    ],
)
def test_rules_of_the_older_format(tmp_path, start, number, expected):
    with IndexedWriter(tmp_path / "x", "i4", "cached") as writer:
        writer.add_batch(np.arange(6), np.array([2, 3, 1]), np.array([2, 1]))
        writer.finalize()
    _patch(str(tmp_path / "x.idx"), start, struct.pack("<q", number))
    problems = check(str(tmp_path / "x"))
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize("task", [16, 1 << 20])
@pytest.mark.parametrize("block", [3, 8, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_beyond_the_vocabulary_are_counted_and_located(prefix, monkeypatch, task, block, threads):
    monkeypatch.setattr(scan, "BLOCK", block)
    monkeypatch.setattr(scan, "_TASK", task)
    seen: list[tuple[int, int]] = []
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    report = check_all([prefix], 130, threads=threads, progress=progress)[0]
    assert report.problems == [
        f"{prefix}.bin: 10 tokens are not 0..129: the first is 130, at place 3 of sequence 4; the lowest is 0, "
        "the highest 139"
    ]
    assert report.highest == 139
    assert seen[-1] == (40, 40)
    assert check(prefix, 140) == []
    assert check_all([prefix], 130, quick=True)[0].problems == []


def test_negative_tokens_are_wrong_in_any_vocabulary(tmp_path):
    with IndexedWriter(tmp_path / "x", "i4") as writer:
        writer.add_document([5, 2**31 - 1])
        writer.add_document([3, -2])
        writer.finalize()
    assert check(str(tmp_path / "x")) == [
        f"{tmp_path}/x.bin: 1 tokens are not 0 or larger: the first is -2, at place 1 of sequence 1; the lowest is -2, "
        "the highest 2147483647"
    ]
    assert (
        "2 tokens are not 0..9: the first is 2147483647, at place 1 of sequence 0" in check(str(tmp_path / "x"), 10)[0]
    )


RECORD = Record("f" * 64, "HFTokenizer", "t.json", 200, None, 6, 6, 40)


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({"documents": 5}, {}, "data.info.json: says 5 documents, the files have 6"),
        ({"tokens": 41}, {}, "data.info.json: says 41 tokens, the files have 40"),
        ({"vocab_size": 120}, {}, "20 tokens are not 0..119: the first is 120, at place 10 of sequence 2"),
        ({}, {"vocab_size": 150}, "made with a vocabulary of 200, expected at most 150"),
        ({}, {"fingerprint": "e" * 64}, "made with another tokenizer, HFTokenizer t.json"),
        ({"eod": 106}, {}, "document 1 ends with token 109, its record says 106"),
    ],
)
def test_the_record_against_the_files(prefix, change, options, expected):
    write_record(prefix, RECORD)
    assert check_all([prefix], fingerprint="f" * 64)[0].problems == []
    write_record(prefix, replace(RECORD, **change))
    problems = check_all([prefix], **options)[0].problems
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 9}', b"\xff", b'{"format": 1}'])
def test_a_record_that_makes_no_sense(prefix, content):
    record_path(prefix).write_bytes(content)
    problems = check(prefix)
    assert len(problems) == 1
    assert "data.info.json" in problems[0]


def test_many_files_are_reported_in_order_and_the_broken_ones_alone(tmp_path):
    prefixes = [write_dataset(tmp_path, [9, number + 1], name=f"d{number}") for number in range(7)]
    Path(prefixes[3] + ".bin").unlink()
    Path(prefixes[5] + ".idx").write_bytes(b"")
    reports = check_all([*prefixes, prefixes[0]], 100, threads=4)
    assert [report.prefix for report in reports] == [*prefixes, prefixes[0]]
    assert [len(report.problems) for report in reports] == [0, 0, 0, 1, 0, 1, 0, 0]
    assert [report.tokens for report in reports] == [10, 11, 12, 0, 14, 0, 16, 10]
