"""Files of torch.save: every flipped bit of the numbers is one line that names member and file."""

from __future__ import annotations

import contextlib
import os
import random
import zipfile

import pytest
import torch

from megads.checkpoint.convert.huggingface.read_tensors import Source
from megads.checkpoint.convert.torch_files.read import load
from megads.checkpoint.convert.torch_files.zip_checksums import verify_zip
from megads.errors import CheckpointError
from tests.data.samples.index_cache.test_damage import SEED, flip

NUMBERS = {"a": torch.arange(3000.0), "b": torch.ones(7, dtype=torch.bfloat16)}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(NUMBERS, path)
    return path


def _same(found) -> bool:
    return found.keys() == NUMBERS.keys() and all(torch.equal(found[name], NUMBERS[name]) for name in NUMBERS)


def test_no_flipped_bit_is_silent(saved):
    content, dice, told = saved.read_bytes(), random.Random(SEED), 0
    for _ in range(60):
        bit = dice.randrange(8 * len(content))
        flip(saved, bit)
        with contextlib.suppress(CheckpointError):
            told += 1
            assert _same(load(saved)), f"seed {SEED}: bit {bit}"  # in a padding, or the time of a member
            told -= 1
        saved.write_bytes(content)
    assert told > 40
    assert _same(load(saved))


def test_the_line_names_member_and_file(saved):
    with zipfile.ZipFile(saved) as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith("data/0"))
    flip(saved, 8 * (info.header_offset + 2000))
    line = rf"pytorch_model\.bin: member {info.filename} changed since it was written, its CRC-32 differs; restore"
    for read in (load, lambda path: Source(path.parent)):
        with pytest.raises(CheckpointError, match=line):
            read(saved)


def test_a_file_is_read_once_and_again_when_it_changes(saved, monkeypatch):
    verify_zip(saved)
    opened = []
    zip_file = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda path: opened.append(path) or zip_file(path))
    verify_zip(saved)
    assert not opened
    os.utime(saved, (1, 1))
    verify_zip(saved)
    assert set(opened) == {saved}


def test_sums_that_torch_was_told_to_leave_out_are_not_missed(saved, tmp_path):
    before = torch.serialization.get_crc32_options() if hasattr(torch.serialization, "get_crc32_options") else None
    if before is None:
        pytest.skip("this torch always writes them")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(NUMBERS, saved)
    finally:
        torch.serialization.set_crc32_options(before)
    assert _same(load(saved))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt: is a pipe; use a file that you can read"):
        load(tmp_path / "x.pt")
