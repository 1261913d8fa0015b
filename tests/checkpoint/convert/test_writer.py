"""A checkpoint from whole tensors: what it needs of memory, and what it leaves."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from megads.checkpoint.convert import writer as module
from megads.checkpoint.convert.writer import FILE_BYTES, new_writer
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError
from megads.storage.file_lock import take_lock

TENSORS = {f"layers.{number}.mlp.up.weight": ShardLayout((256, 64), 0, (256,)) for number in range(40)}


def test_memory_is_a_files_worth_and_a_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES", 4 * 2**16)
    tracemalloc.start()
    try:
        with new_writer(tmp_path / "a", TENSORS, {}, {}) as writer:
            for number, name in enumerate(TENSORS):
                writer.add(name, np.full((256, 64), number, np.float32))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * 2**16 + 2**16 + 2**17
    with Reader(writer.final) as reader:
        assert len(reader.manifest.files) == 10
        assert all((reader.whole(name) == number).all() for number, name in enumerate(TENSORS))
    assert FILE_BYTES <= 2**28


def test_nothing_is_left_of_what_is_given_up(tmp_path):
    with (
        pytest.raises(CheckpointError, match="are missing; the source is incomplete"),
        new_writer(tmp_path / "new" / "a", TENSORS, {}, {}) as writer,
    ):
        writer.add("layers.0.mlp.up.weight", np.zeros((256, 64), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_write_the_same_checkpoint(tmp_path):
    with new_writer(tmp_path, TENSORS, {}, {}) as first:
        with (
            pytest.raises(CheckpointError, match=r"iter_0000000\.tmp: another command is writing it"),
            new_writer(tmp_path, TENSORS, {}, {}),
        ):
            pass
        for name in TENSORS:
            first.add(name, np.zeros((256, 64), np.float32))
    assert list(tmp_path.iterdir()) == [first.final]
    lock = take_lock(tmp_path / "iter_0000000.tmp.lock", temporary=True)
    assert lock is not None, "it was let go"
    lock.release()
