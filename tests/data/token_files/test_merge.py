from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.files import NewFiles, ReadFile
from megads.data.formats.record import Record, read_record, write_record
from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexedWriter, write_index
from megads.data.token_files import merge as merging
from megads.data.token_files.merge import copy_file, merge, prefixes_in
from megads.errors import DataError
from tests.data.factory import numbers, write_dataset

RECORD = Record("f" * 64, "HFTokenizer", "t.json", 100, 7, 2, 2, 8, sources=("a.jsonl",))
# Documents as the tokens of their sequences.
PARTS = [[[3], [], [4]], [[2, 0, 5], [1]], [], [[6]]]


def _write(prefix: Path, documents: list[list[int]], impl: str = "mmap", dtype: str = "u2", start: int = 0) -> str:
    lengths = np.array([length for document in documents for length in document], "i4")
    with IndexedWriter(prefix, dtype, impl) as writer:
        tokens = np.arange(start, start + lengths.sum())
        writer.add_batch(tokens, lengths, np.array([len(document) for document in documents], "i8"))
        writer.finalize()
    return str(prefix)


def _pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()


@pytest.mark.parametrize("impl", ["mmap", "cached"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "u2"])
def test_the_result_is_that_of_the_joined_inputs(tmp_path, impl, dtype):
    names, start = [], 0
    for number, documents in enumerate(PARTS):
        names.append(_write(tmp_path / f"p{number}", documents, impl, dtype, start))
        start += sum(length for document in documents for length in document)
    whole = _write(tmp_path / "whole", [document for documents in PARTS for document in documents], impl, dtype)
    done = merge([f"{names[0]}.bin", *names[1:]], str(tmp_path / "out.idx"))
    assert _pair(tmp_path / "out") == _pair(whole)
    assert (done.documents, done.sequences, done.tokens, done.note) == (6, 7, 21, "")
    assert not list(tmp_path.glob("*.tmp"))


def test_the_same_file_may_come_twice_and_many_blocks_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.data.formats.files.BLOCK", 7)
    monkeypatch.setattr(merging, "_CHUNK", 10)
    name = write_dataset(tmp_path, [3, 0, 5, 1] * 20)
    seen: list[tuple[int, int]] = []
    merge([name, name], str(tmp_path / "out"), progress=lambda done, total: seen.append((done, total)))
    data, one = open_dataset(tmp_path / "out"), open_dataset(name)
    assert numbers(data.document_row) == [*numbers(one.document_row), *(n + 60 for n in numbers(one.document_row)[1:])]
    assert [data.get(i).tolist() for i in range(120)] == 2 * [one.get(i).tolist() for i in range(60)]
    assert seen == [(10 * k, 720) for k in range(1, 73)] or seen[-1] == (720, 720)


def _damage(name: str, folder: Path) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("prepare", "names", "expected"),
    [
        (lambda f: None, [], "out: nothing to merge"),
        (lambda f: None, ["a", "gone"], r"gone\.idx: no such file"),
        (lambda f: (f / "a.bin").unlink(), ["a", "b"], r"a\.bin: no such file"),
        (lambda f: _damage("b.idx", f), ["a", "b"], r"b\.idx: .* truncated or damaged"),
        (lambda f: _damage("b.bin", f), ["a", "b"], r"b\.bin: has 15 bytes, expected 16"),
        (lambda f: _write(f / "c", [[1]], dtype="i4"), ["a", "c"], "c: holds int32 tokens but .*a uint16"),
        (lambda f: _write(f / "c", [[1]], impl="cached"), ["a", "c"], "c: is a cached file but .*a is mmap"),
        (lambda f: None, ["a", "out"], r"out\.idx: no such file"),
        (lambda f: shutil.copy(f / "a.idx", f / "b.idx"), ["a", "b"], r"b\.bin: has 16 bytes, expected 14"),
        (lambda f: (f / "out.idx").mkdir(), ["a", "b"], "out: cannot be written: is a directory"),
    ],
)
def test_what_can_not_be_joined_is_told_and_nothing_is_written(tmp_path, prepare, names, expected):
    _write(tmp_path / "a", [[3], [4]])
    _write(tmp_path / "b", [[3], [5]])
    prepare(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=expected) as error:
        merge([str(tmp_path / name) for name in names], str(tmp_path / "out"))
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_an_input_is_never_the_output(tmp_path, link):
    name = _write(tmp_path / "a", [[3], [4]])
    before = _pair(name)
    for suffix in (".bin", ".idx"):
        link(name + suffix, tmp_path / f"alias{suffix}")
    for output in (name, str(tmp_path / "alias"), str(tmp_path / "." / "a")):
        with pytest.raises(DataError, match="is an input, too; use another output prefix"):
            merge([name], output)
    assert _pair(name) == before


def test_multimodal_and_other_files_are_not_joined(tmp_path):
    _write(tmp_path / "a", [[3], [4]])
    _write(tmp_path / "b", [[3], [4]])
    with (tmp_path / "b.idx").open("ab") as file:
        file.write(b"\1\2")
    with pytest.raises(DataError, match=r"b: only one of it and .*a is multimodal"):
        merge([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "out"))


def test_records_are_added_up(tmp_path):
    for name in "ab":
        write_record(_write(tmp_path / name, [[3], [5]]), replace(RECORD, sources=(f"{name}.jsonl",)))
    merge([str(tmp_path / name) for name in "ab"], str(tmp_path / "out"))
    assert replace(read_record(tmp_path / "out"), checksums=None) == replace(
        RECORD, documents=4, sequences=4, tokens=16, sources=("a.jsonl", "b.jsonl")
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [({"tokenizer": "e" * 64}, f"tokenizer {'f' * 64} and {'e' * 64}"), ({"eod": None}, "eod 7 and None")],
)
def test_other_tokenizers_are_refused_unless_forced(tmp_path, change, told):
    write_record(_write(tmp_path / "a", [[3], [5]]), RECORD)
    write_record(_write(tmp_path / "b", [[3], [5]]), replace(RECORD, **change))
    names = [str(tmp_path / name) for name in "ba"]
    with pytest.raises(DataError, match=rf"was made with other options than .*{told}.*--force"):
        merge(names, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))
    done = merge(names, str(tmp_path / "out"), force=True)
    assert "made with different options" in done.note
    assert read_record(tmp_path / "out") is None


def test_no_record_where_a_part_has_none(tmp_path):
    write_record(_write(tmp_path / "a", [[3], [5]]), RECORD)
    _write(tmp_path / "b", [[3]])
    assert "b has none" in merge([str(tmp_path / name) for name in "ab"], str(tmp_path / "out")).note
    assert read_record(tmp_path / "out") is None


def test_a_part_that_changes_meanwhile_is_noticed(tmp_path):
    names = [_write(tmp_path / name, [[3], [4]]) for name in "ab"]

    def change(done: int, total: int) -> None:
        _write(tmp_path / "b", [[4], [3]])

    with pytest.raises(DataError, match="b: changed while it was merged"):
        merge(names, str(tmp_path / "out"), progress=change)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("kernel", ["copies", "refuses", "copies nothing"])
def test_tokens_are_copied_whichever_way_the_system_has(tmp_path, monkeypatch, kernel):
    """Older kernels and some file systems lack the faster way, or copy nothing silently."""

    def refuse(*args: object) -> int:
        raise OSError(errno.EXDEV, "another device")

    if kernel != "copies":
        monkeypatch.setattr(os, "copy_file_range", refuse if kernel == "refuses" else lambda *args: 0)
    monkeypatch.setattr(merging, "_CHUNK", 1000)
    content = os.urandom(5003)
    (tmp_path / "x").write_bytes(content)
    with (tmp_path / "y").open("wb") as file:
        file.write(b"head")
        assert sum(copy_file(ReadFile(tmp_path / "x"), file)) == 5003
    assert (tmp_path / "y").read_bytes() == b"head" + content


def test_a_full_disk_leaves_nothing(tmp_path):
    names = [write_dataset(tmp_path, [4000] * 3, name=name) for name in "ab"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30000, hard))
    try:
        with pytest.raises(DataError, match="out: cannot be written: file too large; free some space"):
            merge(names, str(tmp_path / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("out*"))


def test_a_disk_that_is_too_small_is_told_before_anything_is_copied(tmp_path):
    big = tmp_path / "big"
    free = shutil.disk_usage(tmp_path).free
    count = free // (2**31 - 1) // 8 + 1
    lengths = np.full(count, 2**31 - 1, "i8")
    try:
        with (tmp_path / "big.bin").open("wb") as file:
            file.truncate(int(lengths.sum()) * 8)
    except OSError:
        assert not os.environ.get("MEGADS_REQUIRE_ALL")
        pytest.skip("this file system has no such large files")
    write_index(tmp_path / "big.idx", "mmap", "i8", lengths, np.arange(count + 1))
    with pytest.raises(DataError, match=r"out: needs .* GiB but its disk has .* GiB; free some space"):
        merge([str(big)], str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))


def test_killed_at_any_moment(tmp_path):
    names = [write_dataset(tmp_path, [4000] * 40, name=name, seed=number) for number, name in enumerate("abc")]
    merge(names, str(tmp_path / "whole"))
    fork = multiprocessing.get_context("fork")
    found = 0
    for moment in range(20):
        worker = fork.Process(target=merge, args=(names, str(tmp_path / "out")))
        worker.start()
        time.sleep(0.0015 * moment)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        if (tmp_path / "out.idx").exists():
            found += 1
            assert _pair(tmp_path / "out") == _pair(tmp_path / "whole")
            (tmp_path / "out.idx").unlink()
    merge(names, str(tmp_path / "out"))
    assert _pair(tmp_path / "out") == _pair(tmp_path / "whole")
    assert not list(tmp_path.glob("*.tmp"))
    assert found < 20


def test_prefixes_of_a_folder(tmp_path):
    for name in ("b", "a_text_document", "a"):
        _write(tmp_path / name, [[1]])
    (tmp_path / "notes.txt").write_text("x")
    assert prefixes_in(tmp_path) == [str(tmp_path / name) for name in ("a", "a_text_document", "b")]
    (tmp_path / "b.idx").unlink()
    with pytest.raises(DataError, match=r"b\.idx: is missing"):
        prefixes_in(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: has no \.bin and \.idx files"):
        prefixes_in(tmp_path / "empty")
    with pytest.raises(DataError, match="no such file or directory; use a folder"):
        prefixes_in(tmp_path / "none")


@pytest.mark.parametrize("output", ["", "sub/", "sub/.", ".."])
def test_an_output_without_a_name_is_refused(tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    name = write_dataset(tmp_path, [3], name="a")
    with pytest.raises(DataError, match=r"names no file; use a name such as .*merged"):
        merge([name], output)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.bin", "a.idx", "sub"]


def test_another_merge_right_behind_leaves_its_own_record(tmp_path, monkeypatch):
    a, b = (write_dataset(tmp_path, [3] * count, name=name) for count, name in ((2, "a"), (5, "b")))
    write_record(a, replace(RECORD, documents=2, sequences=2, tokens=6))
    write_record(b, replace(RECORD, documents=5, sequences=5, tokens=15))
    publish = NewFiles.publish

    def publish_and_be_overtaken(self: NewFiles, *obsolete: str) -> None:
        publish(self, *obsolete)
        monkeypatch.setattr(NewFiles, "publish", publish)
        merge([b], str(tmp_path / "out"))

    monkeypatch.setattr(NewFiles, "publish", publish_and_be_overtaken)
    merge([a], str(tmp_path / "out"))
    record = read_record(tmp_path / "out")
    assert record is not None
    assert record.documents == open_dataset(str(tmp_path / "out")).num_documents == 5
