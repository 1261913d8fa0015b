from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megads.data.formats.record import Record, read_record, write_record
from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexedWriter, write_index
from megads.errors import DataError
from tests.data.factory import numbers

IMPLS = ["mmap", "cached"]


def _tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(data=st.data(), impl=st.sampled_from(IMPLS))
def test_batches_of_any_size_write_what_single_documents_do(tmp_path_factory, data, impl):
    folder = tmp_path_factory.mktemp("w")
    documents = data.draw(st.lists(st.lists(st.integers(0, 65535), max_size=4), min_size=1, max_size=12))
    with IndexedWriter(folder / "one", "u2", impl) as writer:
        for document in documents:
            writer.add_document(document)
        writer.finalize()
    with IndexedWriter(folder / "many", "u2", impl) as writer:
        while documents:
            size = data.draw(st.integers(1, len(documents)))
            batch, documents = documents[:size], documents[size:]
            tokens = np.array(
                [each for document in batch for each in document], data.draw(st.sampled_from(["u2", "u4", "i8"]))
            )
            lengths = np.array([len(each) for each in batch if each], "i4")
            writer.add_batch(tokens, lengths, np.array([min(len(each), 1) for each in batch], "i8"))
        writer.finalize()
    for suffix in (".bin", ".idx"):
        assert (folder / f"one{suffix}").read_bytes() == (folder / f"many{suffix}").read_bytes()


@pytest.mark.parametrize("impl", IMPLS)
def test_an_index_alone_is_the_one_a_writer_makes(tmp_path, impl):
    with IndexedWriter(tmp_path / "x", "i4", impl) as writer:
        writer.add_batch(np.arange(7), np.array([3, 4]), np.array([0, 2, 0]))
        writer.finalize()
    before = (tmp_path / "x.idx").read_bytes()
    write_index(tmp_path / "x.idx", impl, "i4", np.array([3, 4]), np.array([0, 0, 2, 2]))
    assert (tmp_path / "x.idx").read_bytes() == before
    assert open_dataset(tmp_path / "x").get(1).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("impl", IMPLS)
def test_no_document_at_all(tmp_path, impl):
    with IndexedWriter(tmp_path / "x", "i4", impl) as writer:
        writer.finalize()
    with pytest.raises(DataError, match="holds no sequences"):
        open_dataset(tmp_path / "x")
    data = open_dataset(tmp_path / "x", allow_empty=True)
    assert (len(data), data.num_documents, data.num_tokens, numbers(data.length_row)) == (0, 0, 0, [])


@pytest.mark.parametrize(
    ("tokens", "lengths", "sequences", "expected"),
    [
        ([1, 2, 3], [2], [1], "a batch of 3 tokens in 1 sequences does not agree with its lengths .sum 2"),
        ([1, 2, 3], [3], [2], "sequences per document .sum 2"),
        ([1, 2, 3], [4, -1], [2], "lengths .sum -1"),
        ([1, 70000], [2], [1], "holds token 70000, which uint16 cannot store"),
        ([1.5], [1], [1], "not a row of token ids"),
        ([[1]], [1], [1], "not a row of token ids"),
    ],
)
def test_a_wrong_batch_is_refused_and_leaves_nothing(tmp_path, tokens, lengths, sequences, expected):
    writer = IndexedWriter(tmp_path / "x", "u2")
    writer.add_document([1])
    with pytest.raises(DataError, match=expected):
        writer.add_batch(np.array(tokens), np.array(lengths), np.array(sequences))
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(DataError, match="no format named 'map'; known: mmap, cached, lazy"):
        IndexedWriter(tmp_path / "x", "u2", "map")
    with pytest.raises(DataError, match="no format named 'map'"):
        write_index(tmp_path / "x.idx", "map", "u2", np.array([1]), np.array([0, 1]))


def test_the_record_of_older_files_goes_with_them(tmp_path):
    with IndexedWriter(tmp_path / "x", "u2") as writer:
        writer.add_document([1])
        writer.finalize()
    write_record(tmp_path / "x", Record("f" * 64, "HFTokenizer", "t.json", 10, None, 1, 1, 1))
    with IndexedWriter(tmp_path / "x", "u2") as writer:
        writer.add_document([2])
        assert read_record(tmp_path / "x")
        writer.finalize()
    assert read_record(tmp_path / "x") is None


def test_a_full_disk_while_the_index_is_written(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = IndexedWriter(tmp_path / "x", "u1")
    writer.add_batch(np.zeros(2000, "u1"), np.ones(2000, "i4"), np.ones(2000, "i8"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="x: cannot be written: file too large; free some space"):
            writer.finalize()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_folder_under_a_name_of_the_result(tmp_path):
    (tmp_path / "x.idx").mkdir()
    with (
        IndexedWriter(tmp_path / "x", "u1") as writer,
        pytest.raises(DataError, match="x: cannot be written: is a dir"),
    ):
        writer.finalize()
    assert [path.name for path in tmp_path.iterdir()] == ["x.idx"]


def _write_slowly(prefix: Path, value: int, count: int) -> None:
    while True:
        with IndexedWriter(prefix, "u2") as writer:
            for _ in range(count):
                writer.add_batch(np.full(1000, value), np.full(10, 100), np.ones(10, "i8"))
            writer.finalize()


def test_killed_at_any_moment_and_raced_by_another_writer(tmp_path):
    """Two processes write the same prefix again and again and are killed; every look finds one whole file, or none."""
    fork = multiprocessing.get_context("fork")
    seen = set()
    for round_ in range(100):
        writers = [fork.Process(target=_write_slowly, args=(tmp_path / "x", value, value)) for value in (3, 9)]
        for writer in writers:
            writer.start()
        time.sleep(0.02 + 0.01 * round_)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        if (tmp_path / "x.idx").exists():
            data = open_dataset(tmp_path / "x")
            value = int(data.get(0)[0])
            assert len(data) == 10 * value
            assert {int(data.get(i).max()) for i in range(len(data))} == {value}
            seen.add(value)
        if seen and round_ >= 12:
            break
    assert seen
    with IndexedWriter(tmp_path / "x", "u2") as writer:
        writer.add_document([1])
        writer.finalize()
    assert sorted(_tree(tmp_path)) == ["x.bin", "x.idx"]
