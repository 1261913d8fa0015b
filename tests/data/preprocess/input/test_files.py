"""Input files: what they are, and their text."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys

import pytest
import zstandard

from megads.data.preprocess.input.files import look_at, read_lines
from megads.errors import DependencyError
from tests.data.preprocess.conftest import OUT, golden, refused, texts, write_jsonl


def test_read_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\n  \ntwo\nlast")
    (tmp_path / "b").write_bytes(b"three\r\n")
    assert list(read_lines([str(tmp_path / "*")])) == [b"one", b"two", b"last", b"three\r"]


def test_a_small_file_does_not_fill_the_memory(tmp_path):
    """200 MB of zeros in 200 kB."""
    import gzip

    from megads.data.preprocess.input.files import PIECE, read_pieces

    with gzip.open(tmp_path / "bomb", "wb") as file:
        for _ in range(200):
            file.write(bytes(10**6))
    sizes = [len(piece) for piece, _ in read_pieces(look_at(str(tmp_path / "bomb")))]
    assert sum(sizes) == 200 * 10**6
    assert max(sizes) <= PIECE


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(DependencyError, match="pip install zstandard, or unpack them"):
        next(iter(read_lines([str(tmp_path / "a.zst")])))


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
