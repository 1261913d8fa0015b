from __future__ import annotations

import numpy as np
import pytest

from megads.data.formats.record import Record, write_record
from megads.data.formats.writer import IndexedWriter
from megads.data.token_files.inspect import info
from megads.errors import DataError
from tests.data.factory import write_dataset


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_counts_of_documents_and_sequences(tmp_path, impl, monkeypatch):
    monkeypatch.setattr("megads.data.token_files.inspect._DOCUMENTS", 3)
    sequences = np.array([2, 0, 1, 3, 1, 0, 1, 1])
    lengths = np.array([3, 4, 10, 0, 0, 5, 1, 64, 2])
    with IndexedWriter(tmp_path / "x", "i4", impl) as writer:
        writer.add_batch(np.arange(lengths.sum()), lengths, sequences)
        writer.finalize()
    found = info(str(tmp_path / "x"))
    assert (found.impl, found.dtype, found.tokens, found.record) == (impl, "int32", 89, None)
    assert found.first_tokens == tuple(range(16))
    documents = [7, 0, 10, 5, 1, 0, 64, 2]
    for lengths_of, expected in ((found.documents, documents), (found.sequences, lengths.tolist())):
        assert lengths_of.count == len(expected)
        assert lengths_of.empty == expected.count(0)
        assert (lengths_of.shortest, lengths_of.longest) == (0, 64)
        assert lengths_of.mean == pytest.approx(np.mean(expected))
        for rank, value in lengths_of.percentiles.items():
            assert value == np.percentile(expected, rank, method="inverted_cdf")
        powers = {low: sum(low <= each < 2 * low for each in expected) for low in (1, 2, 4, 8, 16, 32, 64)}
        assert dict(lengths_of.histogram) == powers


def test_empty_files_and_records(tmp_path):
    with IndexedWriter(tmp_path / "x", "u2") as writer:
        writer.add_document([])
        writer.finalize()
    record = Record("f" * 64, "HFTokenizer", "t.json", 100, 7, 1, 0, 0)
    write_record(tmp_path / "x", record)
    found = info(str(tmp_path / "x.bin"))
    assert (found.tokens, found.documents.count, found.documents.empty, found.sequences.count) == (0, 1, 1, 0)
    assert (found.record, found.first_tokens) == (record, ())


def test_very_long_documents(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.data.token_files.inspect._LONGEST", 8)
    found = info(write_dataset(tmp_path, [3, 20, 100]))
    assert (found.documents.longest, found.documents.mean) == (100, 41)
    assert found.documents.percentiles[99] == 8


def test_a_broken_file_is_refused(tmp_path):
    prefix = write_dataset(tmp_path, [3, 4, 5])
    with open(prefix + ".idx", "r+b") as file:
        file.seek(34)
        file.write(b"\4")
    with pytest.raises(DataError, match="sequence 1 starts at 6, but the one before it ends at 8"):
        info(prefix)
