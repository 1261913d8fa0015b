"""What token files should be is in their record; one bit that changed is one line of `data check`."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megads.data.check import check_data
from megads.data.formats import record as checksums
from megads.data.formats.record import (
    RECORD_SUFFIX,
    Checksums,
    Record,
    checksums_of,
    read_record,
    record_path,
    write_record,
)
from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexedWriter
from megads.data.token_files.merge import merge
from megads.data.token_files.scan import check, check_all, index_problems
from megads.errors import DataError
from tests.data.factory import make_run, write_dataset
from tests.data.samples.index_cache.test_damage import SEED, flip

RECORD = Record("f" * 64, "NullTokenizer", "", 60000, None, 0, 0, 0)


def _pair(folder: Path, name: str = "x", documents: int = 30, impl: str = "mmap") -> str:
    prefix, numbers = str(folder / name), np.random.RandomState(0)
    with IndexedWriter(prefix, np.uint16 if impl == "mmap" else np.int32, impl) as writer:
        for _ in range(documents):
            writer.add_document(numbers.randint(0, 60000, numbers.randint(1, 60)))
        writer.finalize()
    data = open_dataset(prefix)
    sums = checksums_of(Path(prefix + ".bin"), Path(prefix + ".idx"))
    counts = {"documents": data.num_documents, "sequences": len(data), "tokens": data.num_tokens}
    write_record(prefix, replace(RECORD, **counts, checksums=sums))
    return prefix


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_every_flipped_bit_of_every_file_is_found(tmp_path, impl):
    prefix, dice = _pair(tmp_path, impl=impl), random.Random(SEED)
    assert check(prefix) == []
    for suffix in (".bin", ".idx", RECORD_SUFFIX):
        path = Path(prefix + suffix)
        content = path.read_bytes()
        for _ in range(60):
            bit = dice.randrange(8 * len(content))
            flip(path, bit)
            problems = check(prefix)
            assert len(problems) == 1, f"seed {SEED}: bit {bit} of {suffix}: {problems}"
            assert str(path) in problems[0] or suffix == ".idx"
            path.write_bytes(content)
    assert check(prefix) == []


def test_large_files_are_compared_block_by_block_and_quickly_by_some(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 1 << 21)
    monkeypatch.setattr(checksums, "_PIECE", 1 << 16)
    prefix = str(tmp_path / "x")
    with IndexedWriter(prefix, np.uint16) as writer:
        writer.add_document(np.arange(6 * (1 << 20) + 5) % 60000)
        writer.finalize()
    sums = checksums_of(Path(prefix + ".bin"), Path(prefix + ".idx"), threads=2)
    assert len(sums.bin) == 8 * 7
    write_record(prefix, replace(RECORD, documents=1, sequences=1, tokens=6 * (1 << 20) + 5, checksums=sums))
    assert read_record(prefix).checksums == sums
    assert check(prefix) == []
    flip(Path(prefix + ".bin"), 8 * (5 << 21) + 3)
    problem = f"{prefix}.bin: bytes {5 << 21} to {(6 << 21) - 1} changed since they were written, their CRC-32 differs"
    assert check(prefix) == [f"{problem}; restore a copy, or preprocess again"]
    assert len(check_all([prefix], quick=True)[0].problems) == 1


def test_checksums_of_other_files_are_refused(tmp_path):
    prefix = _pair(tmp_path)
    record = read_record(prefix)
    write_record(prefix, replace(record, checksums=replace(record.checksums, bin=record.checksums.bin * 2)))
    assert "do not belong together" in check(prefix)[0]


@pytest.mark.parametrize(
    "wrong",
    [{"block_bytes": 0}, {"block_bytes": True}, {"block_bytes": 3 << 20}, {"bin": "x" * 8}, {"idx": "123"}, {"bin": 1}],
)
def test_what_is_no_checksum_is_one_line(tmp_path, wrong):
    prefix = _pair(tmp_path)
    content = json.loads(record_path(prefix).read_bytes())
    content["checksums"].update(wrong)
    del content["crc32"]
    record_path(prefix).write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"x\.info\.json: is not a valid record"):
        read_record(prefix)


def test_a_merge_has_checksums_and_does_not_hide_what_changed(tmp_path):
    parts = [_pair(tmp_path, name) for name in "ab"]
    merge(parts, str(tmp_path / "c"))
    found = read_record(tmp_path / "c")
    assert found.checksums == checksums_of(tmp_path / "c.bin", tmp_path / "c.idx")
    assert check(str(tmp_path / "c")) == []
    flip(tmp_path / "b.bin", 100)
    with pytest.raises(DataError, match=r"b\.bin: bytes 0 to \d+ changed since they were written"):
        merge(parts, str(tmp_path / "d"))
    assert not list(tmp_path.glob("d*"))


def test_files_of_others_have_no_checksums_and_are_read(tmp_path):
    prefix = _pair(tmp_path)
    record_path(prefix).unlink()
    assert check(prefix) == []
    assert check_all([prefix])[0].record is None


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_a_large_index_is_looked_at_in_stretches(tmp_path, impl):
    lengths = [1] * 30_000
    prefix = write_dataset(tmp_path, lengths) if impl == "mmap" else _pair(tmp_path, documents=30_000, impl=impl)
    assert list(index_problems(open_dataset(prefix), 1 << 17)) == []
    path = Path(prefix + ".idx")
    content, dataset = path.read_bytes(), open_dataset(prefix)
    rows = [dataset.length_row, dataset.start_row, dataset.document_row]
    rows += [dataset.dim_row] if impl == "cached" else []
    for row in rows:
        for number in (1, 29_998):
            flip(path, 8 * (row._start + number * row._size) + 1)
            found = list(index_problems(open_dataset(prefix), 1 << 17))
            assert len(found) == 1
            assert str(path) in found[0]
            assert str(number) in found[0] or str(number + 1) in found[0] or str(number - 1) in found[0]
            path.write_bytes(content)


def test_a_launch_refuses_an_index_that_is_not_sound_and_names_the_number(tmp_path):
    prefix = write_dataset(tmp_path, [40] * 30)
    (tmp_path / "list.txt").write_text(f"1 {prefix} c\n")
    run = make_run(data={"file_list": str(tmp_path / "list.txt")})
    check_data(run, 100)
    flip(Path(prefix + ".idx"), 8 * (open_dataset(prefix).start_row._start + 8 * 7))
    with pytest.raises(DataError, match=r"data\.idx: sequence 7 starts at .*; restore a copy"):
        check_data(run, 100)


def test_a_record_of_an_older_version_is_read(tmp_path):
    prefix = _pair(tmp_path)
    content = json.loads(record_path(prefix).read_bytes())
    del content["crc32"], content["checksums"]
    record_path(prefix).write_text(json.dumps(content))
    assert read_record(prefix).checksums is None
    assert Checksums.parse({"block_bytes": 1 << 24, "bin": "", "idx": "00000000"})
