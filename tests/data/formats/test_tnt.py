from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.dtypes import best_dtype
from megads.data.formats.token_file import TntDataset, open_dataset
from megads.data.formats.writer import IndexedWriter
from megads.errors import DataError
from tests.data.factory import numbers

# 3 documents of the sentences [10 11] [12 13 14], none, and [15], int32; laid out by hand from the format.
HEAD = b"TNTIDX\0\0" + struct.pack("<6Q", 1, 4, 4, 3, 3, 4)
DIMS, STARTS, SIZES, DOCUMENTS = [0, 1, 2, 3], [0, 2, 5, 6], [2, 3, 1], [0, 2, 2, 3]
GOLDEN = HEAD + struct.pack("<15q", *DIMS, *STARTS, *SIZES, *DOCUMENTS)
TOKENS = struct.pack("<6i", *range(10, 16))


@pytest.fixture
def golden(tmp_path) -> Path:
    (tmp_path / "g.idx").write_bytes(GOLDEN)
    (tmp_path / "g.bin").write_bytes(TOKENS)
    return tmp_path / "g"


@pytest.mark.parametrize("impl", ["cached", "lazy"])
def test_writer_gives_the_bytes_of_the_format(tmp_path, impl):
    with IndexedWriter(tmp_path / "x", best_dtype(100, impl), impl) as writer:
        writer.add_batch(np.arange(10, 15), np.array([2, 3]), np.array([2]))
        writer.add_document([])
        writer.add_document([15])
        writer.finalize()
    assert (tmp_path / "x.idx").read_bytes() == GOLDEN
    assert (tmp_path / "x.bin").read_bytes() == TOKENS


def test_reader_reads_the_bytes_of_the_format(golden):
    data = open_dataset(golden)
    assert isinstance(data, TntDataset)
    assert (len(data), data.num_tokens, data.num_documents) == (3, 6, 3)
    assert data.dtype == np.int32
    assert numbers(data.length_row) == SIZES
    assert numbers(data.document_row) == DOCUMENTS
    assert [data.get(i).tolist() for i in range(3)] == [[10, 11], [12, 13, 14], [15]]
    assert data.get(1, 1, 1).tolist() == [13]
    assert not data.get(0).flags.writeable


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "u2"])
def test_every_integer_type_round_trips(tmp_path, dtype):
    limits = np.iinfo(dtype)
    with IndexedWriter(tmp_path / "x", dtype, "lazy") as writer:
        writer.add_document([limits.min, limits.max])
        writer.add_document([5])
        writer.finalize()
    data = open_dataset(tmp_path / "x")
    assert data.dtype == np.dtype(dtype)
    assert [data.get(i).tolist() for i in range(2)] == [[limits.min, limits.max], [5]]


def _patched(start: int, number: int) -> bytes:
    return GOLDEN[:start] + struct.pack("<q", number) + GOLDEN[start + 8 :]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "g.idx: is empty"),
        (GOLDEN[:30], "truncated, 30 bytes, expected at least the 56 of a header"),
        (GOLDEN[:-8], "168 bytes, expected 176 for 3 sequences and 4 document entries"),
        (_patched(8, 2), "format version 2, expected 1"),
        (_patched(16, 6), "dtype code 6 is floats"),
        (_patched(16, 7), "dtype code 7 is floats"),
        (_patched(16, 0), "dtype code 0 is unknown"),
        (_patched(24, 2), "tokens of 2 bytes, but int32 has 4"),
        (_patched(32, 2), "3 sizes for 2 sequences; it holds items of several dimensions"),
        (_patched(48, -1), "18446744073709551615 document entries"),
        (_patched(120 + 24, 1), "document index: it runs from 1 to 3, expected 0 to 3"),
        (_patched(120 + 24 + 24, 2), "document index: it runs from 0 to 2, expected 0 to 3"),
        (_patched(120 + 16, 2), "has 24 bytes, expected 28 from g.idx"),
        (_patched(56 + 24, 4), "sequence 2 has its sizes at 2..4, expected 2..3"),
    ],
)
def test_broken_headers_are_refused(golden, content, expected):
    golden.with_suffix(".idx").write_bytes(content)
    with pytest.raises(DataError) as error:
        open_dataset(golden)
    assert expected in str(error.value)
    assert str(golden) in str(error.value)


@pytest.mark.parametrize(("start", "number"), [(88, -1), (88, 5), (88, 2**62), (120, -1), (120, 2**62), (56, 1)])
def test_what_lies_outside_of_the_tokens_is_never_read(golden, start, number):
    golden.with_suffix(".idx").write_bytes(_patched(start, number))
    data = open_dataset(golden)
    with pytest.raises(DataError, match="sequence 0"):
        data.get(0)
    assert data.get(2).tolist() == [15]


def test_no_document_index(golden):
    golden.with_suffix(".idx").write_bytes(_patched(48, 0)[:-32])
    with pytest.raises(DataError, match="has no document index"):
        open_dataset(golden)


def test_missing_tokens(golden):
    golden.with_suffix(".bin").unlink()
    with pytest.raises(DataError, match=r"g\.bin: no such file"):
        open_dataset(golden)
