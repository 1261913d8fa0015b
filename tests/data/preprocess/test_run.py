"""What comes out: the bytes that Megatron's tool writes, for every way to make them; and what is rejected."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest

from tests.data.preprocess.conftest import OUT, golden, index, refused, write_jsonl

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


@pytest.mark.parametrize("eod", [False, True])
def test_bytes_are_those_of_megatron(megads, tokenizer, values, eod):
    """Empty documents keep their entry; lists are ready sentences; a document ends with eod if it has a token."""
    mixed = [*values, [], ["one sentence", "", "another"], ["", ""], [""], "last"]
    assert "" in values
    write_jsonl(megads.folder / "a.jsonl", mixed)
    done = megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, *["--append-eod"] * eod)
    tokens, lengths, documents = golden(tokenizer, mixed, eod=eod)
    assert megads.files() == {
        "out_text_document.bin": tokens,
        "out_text_document.idx": index(lengths, documents, 2, 8),
    }
    assert megads.hidden() == []
    listed = done.out.split("#")[0].split()
    assert listed == [str(len(tokens) // 2), str(megads.folder / "out_text_document"), "out"]


@pytest.mark.parametrize(
    "words",
    [
        ["--workers", 1],
        ["--workers", 2, "--chunk-size", 25],
        ["--workers", 3, "--block-bytes", 500],
        ["--workers", 3, "--block-bytes", 77, "--chunk-size", 1],
        ["--workers", 4, "--partitions", 3, "--block-bytes", 1000],
        ["--workers", 2, "--verify"],
        ["--workers", 2, "--encoder", "auto", "--keep-sequential-samples"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_same_bytes_however_the_work_is_shared(megads, tokenizer, values, words):
    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--append-eod", *words)
    tokens, lengths, documents = golden(tokenizer, values, eod=True)
    assert megads.files()["out_text_document.bin"] == tokens
    assert megads.files()["out_text_document.idx"] == index(lengths, documents, 2, 8)
    assert megads.hidden() == []


def test_several_keys(megads, tokenizer):
    rows = [{"text": f"text {n}", "title": [f"title {n}", "sub"] if n % 3 else "", "other": n} for n in range(50)]
    (megads.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    megads.made(
        "--input", "a.jsonl", "--json-keys", "text", "title", *OUT, "--tokenizer-model", tokenizer, "--append-eod"
    )
    files = megads.files()
    for key in ("text", "title"):
        tokens, lengths, documents = golden(tokenizer, [row[key] for row in rows], eod=True)
        assert files[f"out_{key}_document.bin"] == tokens
        assert files[f"out_{key}_document.idx"] == index(lengths, documents, 2, 8)


def test_lines_much_longer_than_a_block(megads, tokenizer):
    values = ["short", "long " * 40_000, "short again", "x " * 30_000, ""]
    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--workers", 2, "--block-bytes", 1000)
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, values, eod=False)[0]
    (megads.folder / "a.gz").write_bytes(gzip.compress((megads.folder / "a.jsonl").read_bytes()))
    megads.made("--input", "a.gz", "--output-prefix", "gz", "--tokenizer-model", tokenizer, "--block-bytes", 1000)
    assert megads.files()["gz_text_document.bin"] == megads.files()["out_text_document.bin"]


def test_null_tokenizer_counts_as_megatron(megads):
    """``--vocab-size N``: ids 0 to N, the last one at the end of documents."""
    write_jsonl(megads.folder / "a.jsonl", ["1 2 3", "", "785"])
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-type", "NullTokenizer", "--vocab-size", 786, "--append-eod")
    assert megads.files()["out_text_document.bin"] == np.array([1, 2, 3, 786, 785, 786], "<u2").tobytes()
