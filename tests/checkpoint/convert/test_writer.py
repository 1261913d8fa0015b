"""A checkpoint from whole tensors: what it needs of memory, and what it leaves."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from megads.checkpoint.convert import writer as module
from megads.checkpoint.convert.writer import FILE_BYTES, Writer
from megads.checkpoint.format.commit import only_writer
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError

TENSORS = {f"layers.{number}.mlp.up.weight": ShardLayout((256, 64), 0, (256,)) for number in range(40)}


def test_memory_is_a_files_worth_and_a_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES", 4 * 2**16)
    writer = Writer(tmp_path / "a", TENSORS, {}, {})
    tracemalloc.start()
    try:
        for number, name in enumerate(TENSORS):
            writer.add(name, np.full((256, 64), number, np.float32))
        path = writer.finish()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * 2**16 + 2**16 + 2**17
    with Reader(path) as reader:
        assert len(reader.manifest.files) == 10
        assert all((reader.whole(name) == number).all() for number, name in enumerate(TENSORS))
    assert FILE_BYTES <= 2**28


def test_nothing_is_left_of_what_is_given_up(tmp_path):
    writer = Writer(tmp_path / "new" / "a", TENSORS, {}, {})
    writer.add("layers.0.mlp.up.weight", np.zeros((256, 64), np.float32))
    with pytest.raises(CheckpointError, match="are missing; the source is incomplete"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_write_the_same_checkpoint(tmp_path):
    first = Writer(tmp_path, TENSORS, {}, {})
    with pytest.raises(CheckpointError, match=r"iter_0000000\.tmp: another command is writing it"):
        Writer(tmp_path, TENSORS, {}, {})
    for name in TENSORS:
        first.add(name, np.zeros((256, 64), np.float32))
    path = first.finish()
    assert list(tmp_path.iterdir()) == [path]
    with only_writer(tmp_path / "iter_0000000.tmp"):
        pass  # it was let go
