from __future__ import annotations

import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.token_file import IndexedDataset
from megads.data.formats.writer import IndexedWriter, starts
from megads.errors import DataError
from tests.data.factory import numbers, write_dataset

# 6 documents of 7 3 12 5 9 4 tokens, uint16, tokens 100..139; written by Megatron-LM.
LENGTHS = [7, 3, 12, 5, 9, 4]
GOLDEN = bytes.fromhex(
    "4d4d494449445800000100000000000000080600000000000000070000000000000007000000030000000c0000000500000009000000"
    "0400000000000000000000000e0000000000000014000000000000002c00000000000000360000000000000048000000000000000000"
    "000000000000010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000"
)


@pytest.fixture
def golden(tmp_path) -> Path:
    (tmp_path / "g.idx").write_bytes(GOLDEN)
    (tmp_path / "g.bin").write_bytes(np.arange(100, 140, dtype="<u2").tobytes())
    return tmp_path / "g"


def test_writer_gives_megatrons_bytes(tmp_path, golden):
    prefix = write_dataset(tmp_path, LENGTHS, vocab=200, seed=None, start=100)
    assert Path(prefix + ".idx").read_bytes() == GOLDEN
    assert Path(prefix + ".bin").read_bytes() == golden.with_suffix(".bin").read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_reader_reads_megatrons_bytes(golden, suffix):
    data = IndexedDataset(f"{golden}{suffix}")
    assert len(data) == 6
    assert data.dtype == np.uint16
    assert data.num_tokens == 40
    assert numbers(data.length_row) == LENGTHS
    assert numbers(data.document_row) == list(range(7))
    assert data.get(2).tolist() == list(range(110, 122))
    assert data.get(2, 3, 2).tolist() == [113, 114]
    assert data.get(5, 4).tolist() == []
    assert not data.get(0).flags.writeable


def test_reader_refuses_tokens_outside_of_a_sequence(golden):
    data = IndexedDataset(golden)
    for bad in [(0, 0, 8), (0, 8), (0, -1), (0, 3, -1), (6,)]:
        with pytest.raises(IndexError):
            data.get(*bad)


def test_reader_reads_multimodal_files(golden):
    golden.with_suffix(".idx").write_bytes(GOLDEN + bytes(6))
    data = IndexedDataset(golden)
    assert data.get(1).tolist() == [107, 108, 109]


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "u2"])
def test_every_integer_type_round_trips(tmp_path, dtype):
    limits = np.iinfo(dtype)
    with IndexedWriter(tmp_path / "x", dtype) as writer:
        writer.add_document([limits.min, limits.max])
        writer.add_document([])
        writer.add_document(np.array([5]))
        writer.finalize()
    data = IndexedDataset(tmp_path / "x")
    assert data.dtype == np.dtype(dtype)
    assert [data.get(i).tolist() for i in range(2)] == [[limits.min, limits.max], [5]]
    assert numbers(data.document_row) == [0, 1, 1, 2]


def test_byte_offsets_beyond_32_bits(tmp_path):
    """A 6 GB sparse file: offsets computed in 32 bits would wrap around."""
    count, lengths = 3, 2**29
    offsets = np.arange(count, dtype="<i8") * lengths * 4
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, count, count + 1)
    body = np.full(count, lengths, "<i4").tobytes() + offsets.tobytes() + np.arange(count + 1, dtype="<i8").tobytes()
    (tmp_path / "big.idx").write_bytes(header + body)
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(count * lengths * 4)
        file.seek(-4, 2)
        file.write(struct.pack("<i", 77))
    data = IndexedDataset(tmp_path / "big")
    assert data.get(2, lengths - 2).tolist() == [0, 77]
    assert data.num_tokens == 3 * 2**29


def test_written_offsets_are_64_bits():
    lengths = np.full(3, 2**30, np.int32)
    assert np.concatenate(list(starts(lambda: iter([lengths[:1], lengths[1:]]), 4))).tolist() == [0, 2**32, 2**33]


def _patch(golden: Path, offset: int, content: bytes) -> None:
    changed = bytearray(GOLDEN)
    changed[offset : offset + len(content)] = content
    golden.with_suffix(".idx").write_bytes(changed)


@pytest.mark.parametrize(
    ("offset", "content", "expected"),
    [
        (0, b"GARBAGE!!", "expected b'MMIDIDX"),
        (0, b"TNTIDX\0\0", "expected b'MMIDIDX"),
        (9, struct.pack("<Q", 2), "format version 2, expected 1"),
        (17, b"\x06", "dtype code 6 is floats"),
        (17, b"\x07", "dtype code 7 is floats"),
        (17, b"\x09", "dtype code 9 is unknown"),
        (18, struct.pack("<Q", 7), "162 bytes, expected 174"),
        (18, struct.pack("<Q", 2**62), "162 bytes, expected"),
        (106, struct.pack("<q", 1), "runs from 1 to 6, expected 0 to 6"),
        (154, struct.pack("<q", 5), "runs from 0 to 5, expected 0 to 6"),
        (17, b"\x04", "g.bin: has 80 bytes, expected 88"),
    ],
)
def test_broken_headers_are_refused(golden, offset, content, expected):
    _patch(golden, offset, content)
    with pytest.raises(DataError) as error:
        IndexedDataset(golden)
    assert expected in str(error.value)
    assert str(golden) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [1, 5, 9, 33])
def test_cut_header(golden, size):
    golden.with_suffix(".idx").write_bytes(GOLDEN[:size])
    with pytest.raises(DataError, match=f"truncated, {size} bytes, expected at least the 34"):
        IndexedDataset(golden)


@pytest.mark.parametrize("size", [34, 60, 161, 163])
def test_cut_arrays(golden, size):
    golden.with_suffix(".idx").write_bytes((GOLDEN + b"x")[:size])
    with pytest.raises(DataError, match=f"{size} bytes, expected 162 for 6 sequences and 7"):
        IndexedDataset(golden)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_missing_empty_and_folder(golden, suffix):
    path = golden.with_suffix(suffix)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"g.bin: has 0 bytes, expected 80" if suffix == ".bin" else r"g.idx: is empty"):
        IndexedDataset(golden)
    path.unlink()
    with pytest.raises(DataError, match=f"g{suffix}: no such file"):
        IndexedDataset(golden)
    path.mkdir()
    with pytest.raises(DataError, match=f"g{suffix}: is a folder"):
        IndexedDataset(golden)


@pytest.mark.parametrize("size", [78, 82])
def test_tokens_that_do_not_belong_to_the_index(golden, size):
    golden.with_suffix(".bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match=f"g.bin: has {size} bytes, expected 80 from g.idx"):
        IndexedDataset(golden)


def test_no_sequences(golden):
    golden.with_suffix(".idx").write_bytes(struct.pack("<9sQBQQq", b"MMIDIDX\0\0", 1, 8, 0, 1, 0))
    with pytest.raises(DataError, match="holds no sequences"):
        IndexedDataset(golden)


def test_no_document_index(golden):
    golden.with_suffix(".idx").write_bytes(GOLDEN[:26] + bytes(8) + GOLDEN[34:106])
    with pytest.raises(DataError, match="has no document index"):
        IndexedDataset(golden)


def test_offset_outside_of_the_tokens(golden):
    _patch(golden, 58, struct.pack("<q", 10**6))
    with pytest.raises(DataError, match=r"sequence 0 \(byte 1000000, 7 tokens\) lies outside of g.bin"):
        IndexedDataset(golden).get(0)


@pytest.mark.parametrize(
    ("tokens", "expected"), [([1, 65536], "token 65536"), ([-1], "token -1"), ([0.5], "not a row")]
)
def test_writer_refuses_wrong_tokens_and_leaves_nothing(tmp_path, tokens, expected):
    writer = IndexedWriter(tmp_path / "x", np.uint16)
    with pytest.raises(DataError, match=expected):
        writer.add_document(tokens)
    assert not list(tmp_path.iterdir())


def test_writer_refuses_floats(tmp_path):
    with pytest.raises(DataError, match="cannot store float32"):
        IndexedWriter(tmp_path / "x", np.float32)


def test_failed_block_leaves_the_old_files(tmp_path):
    prefix = write_dataset(tmp_path, [3, 4])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail() -> None:
        with IndexedWriter(prefix, np.uint16) as writer:
            writer.add_document([1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_writer_without_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"none/x: cannot be written: no such file or directory"):
        IndexedWriter(tmp_path / "none" / "x", np.uint16)


@pytest.mark.parametrize("documents", [1, 40])
def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, documents):
    """The file size limit makes the kernel refuse the write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = IndexedWriter(tmp_path / "x", np.uint16)

    def fill() -> None:
        for _ in range(documents):
            writer.add_document(np.zeros(3000, np.uint16))
        writer.finalize()

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="x: cannot be written: file too large"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
