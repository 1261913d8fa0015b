"""Bad lines, texts and disks end in one line that says where, and what would work."""

from __future__ import annotations

import os

import pytest

from tests.data.preprocess.conftest import GOOD, golden, refused, texts, write_jsonl


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


def test_bad_lines_are_left_out_up_to_the_limit(megads, tokenizer, values):
    lines = write_jsonl(megads.folder / "a.jsonl", values[:40]).read_bytes().splitlines(keepends=True)
    lines[7] = b'{"text": "half\n'
    lines[9] = b"\n"
    lines[20] = b'{"text": 5}\n'
    (megads.folder / "a.jsonl").write_bytes(b"".join(lines))
    kept = [value for number, value in enumerate(values[:40]) if number not in (7, 9, 20)]
    for number, share in enumerate((["--workers", 1], ["--workers", 3, "--block-bytes", 99], ["--partitions", 2])):
        out = ("--output-prefix", f"out{number}")
        done = megads.made("--input", "a.jsonl", *out, "--tokenizer-model", tokenizer, "--max-bad-lines", 2, *share)
        assert megads.files()[f"out{number}_text_document.bin"] == golden(tokenizer, kept, eod=False)[0]
        assert "skipped 2 bad lines: a.jsonl:8: is not JSON" in done.err
        assert "a.jsonl:21: 'text' is a number; expected a text or a list of texts" in done.err
    done = megads("--input", "a.jsonl", "--output-prefix", "no", "--tokenizer-model", tokenizer, "--max-bad-lines", 1)
    assert done.code == 2
    assert done.error.startswith("megads: 2 bad lines, --max-bad-lines allows 1; the first: a.jsonl:8: is not JSON")
    assert "no_text_document.bin" not in megads.files()
