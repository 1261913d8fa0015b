"""What comes out: the bytes that Megatron's tool writes, whatever way they are made."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct

import numpy as np
import pytest
import zstandard

from tests.data.preprocess.conftest import golden, texts, write_jsonl

OUT = ("--output-prefix", "out")


def index(lengths: list[int], documents: list[int], itemsize: int, code: int) -> bytes:
    """Return an .idx file, as megatron.md 2.1."""
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(documents))
    starts = [0, *np.cumsum(lengths, dtype="<i8").tolist()][: len(lengths)]
    offsets = np.array(starts, "<i8") * itemsize
    return head + np.array(lengths, "<i4").tobytes() + offsets.tobytes() + np.array(documents, "<i8").tobytes()


@pytest.fixture
def values():
    return texts(300)


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


def test_record(megads, tokenizer, values):
    from megads.data.formats.record import read_record
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import identity

    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--append-eod")
    record = read_record(megads.folder / "out_text_document")
    tokens, lengths, documents = golden(tokenizer, values, eod=True)
    assert record is not None
    assert record.tokenizer == identity(TokenizerSpec("HFTokenizer", str(tokenizer)))
    assert (record.documents, record.sequences, record.tokens) == (len(documents) - 1, len(lengths), len(tokens) // 2)
    assert (record.eod, record.level, record.key, record.sources) == (0, "document", "text", ("a.jsonl",))


@pytest.mark.parametrize("impl", ["cached", "lazy"])
def test_old_formats(megads, tokenizer, values, impl):
    from megads.data.formats.open import open_dataset

    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--dataset-impl", impl)
    tokens, lengths, documents = golden(tokenizer, values, eod=False, impl=impl)
    files = megads.files()
    assert files["out_text_document.bin"] == tokens
    assert files["out_text_document.idx"].startswith(b"TNTIDX\0\0")
    found = open_dataset(megads.folder / "out_text_document")
    assert found.lengths.tolist() == lengths
    assert found.document_index.tolist() == documents


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


@pytest.mark.parametrize(
    "kind", ["plain", "gz", "xz", "zst", "bz2", "stdin", "gz on stdin", "no last line break", "bom"]
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_same_bytes_however_the_input_is_stored(megads, tokenizer, values, kind, partitions):
    """Three files, the second one empty; a file is known by its content, not by its name."""
    raw = write_jsonl(megads.folder / "all", values).read_bytes()
    cut = raw.index(b"\n", len(raw) // 2) + 1
    pack = {
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": zstandard.ZstdCompressor().compress,
        "bz2": bz2.compress,
        "no last line break": lambda data: data.removesuffix(b"\n"),
        "bom": lambda data: b"\xef\xbb\xbf" + data,
    }.get(kind, bytes)
    for name, data in {"a": raw[:cut], "b": b"", "c": raw[cut:]}.items():
        (megads.folder / name).write_bytes(pack(data))
    options = {}
    names = ["a", "b", "c"]
    if "stdin" in kind:
        partitions = 1
        (megads.folder / "in").write_bytes(gzip.compress(raw) if "gz" in kind else raw)
        options["stdin"] = str(megads.folder / "in")
        names = ["-"]
    share = ["--workers", 3, "--partitions", partitions, "--block-bytes", 700]
    megads.made("--input", *names, *OUT, "--tokenizer-model", tokenizer, *share, **options)
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, values, eod=False)[0]


def test_patterns_are_sorted_and_inputs_keep_their_order(megads, tokenizer, values):
    for name, part in {"b1": values[:10], "b0": values[10:20], "a": values[20:30]}.items():
        write_jsonl(megads.folder / f"{name}.jsonl", part)
    megads.made("--input", "b*.jsonl", "a.jsonl", *OUT, "--tokenizer-model", tokenizer)
    expected = golden(tokenizer, [*values[10:20], *values[:10], *values[20:30]], eod=False)
    assert megads.files()["out_text_document.bin"] == expected[0]


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


@pytest.mark.parametrize(("size", "dtype"), [(65_499, "<u2"), (65_500, "<i4"), (100_000, "<i4")])
def test_type_of_the_tokens(megads, size, dtype):
    write_jsonl(megads.folder / "a.jsonl", ["1 2 3", "65000 4"])
    words = ["--tokenizer-type", "NullTokenizer", "--vocab-size", size - 1]
    megads.made("--input", "a.jsonl", *OUT, *words)
    assert megads.files()["out_text_document.bin"] == np.array([1, 2, 3, 65000, 4], dtype).tobytes()


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


def test_what_pythons_json_takes_is_taken(megads, tokenizer):
    (megads.folder / "a.jsonl").write_text(
        '{"score": NaN, "text": "a b"}\r\n  \n{"text": "c", "big": 1e999, "n": -Infinity}'
    )
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer)
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, ["a b", "c"], eod=False)[0]
