"""What any layout wrote is read back exactly by any other."""

import os
import resource
import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megads.checkpoint.format import reader as reader_module
from megads.checkpoint.format.manifest import Manifest, read_manifest
from megads.checkpoint.format.reader import Reader, Want, run_in_threads
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError
from tests.checkpoint.made import TENSORS, make, numbers_of, shares, slice_of

DEGREES = st.sampled_from((1, 2, 4))
# Shares that are even are reported together, others one by one.
EVEN = st.integers(1, 9).map(lambda size: [share / size for share in range(1, size)])
BOUNDS = st.one_of(st.lists(st.floats(0, 1), max_size=3), EVEN)


@settings(max_examples=60, deadline=None)
@given(DEGREES, BOUNDS, DEGREES, BOUNDS, st.sampled_from((3, 7, 64, 1 << 22)), st.sampled_from((1, 3)))
def test_any_layout_reads_what_any_layout_wrote(written, written_bounds, wanted, bounds, band, threads):
    numbers = numbers_of(TENSORS)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "BAND", band)
        path = make(Path(folder), numbers=numbers, degree=written, bounds=written_bounds)
        with Reader(path, threads=threads) as reader:
            for rank in range(wanted):
                for kind, name, cut, first, count in _runs(wanted, rank, bounds):
                    read = reader.read(name, kind, cut, first, count)
                    expected = slice_of(numbers[kind][name], cut).reshape(-1)[first : first + count]
                    assert np.array_equal(read, expected), (kind, name, rank, first, count)


def _runs(degree, rank, bounds):
    for kind in ("weight", "exp_avg_sq"):
        for name, cut in TENSORS.items():
            mine = cut.of(rank, degree)
            for first, count in shares(mine.count, bounds):
                yield kind, name, mine, first, count


@pytest.mark.parametrize("threads", [1, 4])
def test_all_that_a_rank_wants_is_read_together(tmp_path, threads, monkeypatch):
    monkeypatch.setattr(reader_module, "BAND", 16)
    numbers = numbers_of(TENSORS)
    path = make(tmp_path, numbers=numbers, degree=4, bounds=(0.2, 0.7))
    wants, memory = [], np.full(1000, np.nan, np.float32)
    for kind, name, cut, first, count in _runs(2, 1, (0.3,)):
        wants.append(Want(name, kind, cut, first, memory[:count]))
        memory = memory[count:]
    with Reader(path, threads=threads) as reader:
        reader.fill(wants)
    for want in wants:
        expected = slice_of(numbers[want.kind][want.name], want.cut).reshape(-1)
        assert np.array_equal(want.out, expected[want.first : want.first + want.out.size])
    assert np.isnan(memory).all()


def test_a_whole_tensor_comes_in_its_own_shape(tmp_path):
    numbers = numbers_of(TENSORS)
    with Reader(make(tmp_path, numbers=numbers, degree=4)) as reader:
        for name in TENSORS:
            assert np.array_equal(reader.whole(name), numbers["weight"][name])
            assert np.array_equal(reader.whole(name, "exp_avg"), numbers["exp_avg"][name])


@pytest.mark.parametrize(("rows", "degree"), [(7, 1), (8, 4), (12, 2), (64, 1)])
def test_padding_rows_of_the_vocabulary_may_be_more_or_fewer(tmp_path, rows, degree):
    numbers = numbers_of(TENSORS)
    path = make(tmp_path, numbers=numbers, degree=2)  # 8 rows for 7 tokens
    stored = numbers["weight"]["embedding.weight"]
    expected = np.zeros((rows, 6), np.float32)
    expected[: min(rows, 8)] = stored[:rows]
    with Reader(path) as reader:
        for rank in range(degree):
            cut = ShardLayout((rows, 6), 0, (rows,), rank, degree)
            read = reader.read("embedding.weight", "weight", cut, 0, cut.count)
            assert np.array_equal(read, slice_of(expected, cut).reshape(-1))


def test_another_model_is_refused(tmp_path):
    with Reader(make(tmp_path)) as reader:
        # Six rows are fewer than there are tokens; no other tensor has padding.
        for name, cut in (("embedding.weight", ShardLayout((6, 6), 0, (6,))), ("final_norm.weight", ShardLayout((8,)))):
            with pytest.raises(CheckpointError, match=r"has shape .*, this run's has .*another model"):
                reader.read(name, "weight", cut, 0, cut.count)
        with pytest.raises(CheckpointError, match=r"holds no layers\.9\.x; it is a checkpoint of another model"):
            reader.read("layers.9.x", "weight", ShardLayout((4,)), 0, 4)


def test_a_checkpoint_of_weights_has_no_moments(tmp_path):
    path = make(tmp_path, numbers=numbers_of(TENSORS, ("weight",)))
    with Reader(path) as reader, pytest.raises(CheckpointError, match="holds no exp_avg, only weight"):
        reader.whole("final_norm.weight", "exp_avg")


def test_the_generator_states_of_older_versions_are_known_and_left_alone(tmp_path):
    states = {"default.cpu": np.arange(16, dtype=np.uint8), "python_numpy": np.frombuffer(b"{}", np.uint8)}
    with Reader(make(tmp_path, rng=states)) as reader:
        assert reader.manifest.has_generators
        assert Manifest.parse(reader.manifest.dump()) == reader.manifest
        np.testing.assert_array_equal(
            reader.whole("final_norm.weight"), numbers_of(TENSORS)["weight"]["final_norm.weight"]
        )


def test_only_what_is_wanted_is_read(tmp_path):
    """A rank finds its numbers although a file that it does not need is damaged."""
    path = make(tmp_path, degree=2, bounds=())
    damaged = path / "rank-00001.safetensors"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    cut = TENSORS["layers.0.attention.qkv.weight"]
    with Reader(path) as reader:
        mine = cut.of(0, 2)
        assert reader.read("layers.0.attention.qkv.weight", "weight", mine, 0, mine.count).any()
        with pytest.raises(CheckpointError, match=r"rank-00001\.safetensors: its header changed"):
            reader.whole("layers.0.attention.qkv.weight")


def test_damage_is_told_from_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "BAND", 16)
    path = make(tmp_path, degree=1, bounds=())
    file = path / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with (
        Reader(path, threads=4) as reader,
        pytest.raises(CheckpointError, match="block 0 changed since it was written"),
    ):
        reader.whole("embedding.weight")


def test_more_files_than_a_process_may_open(tmp_path):
    numbers = numbers_of({"a": ShardLayout((64, 4), 0, (64,))})
    # The process has some open already, of which it needs more meanwhile.
    limit = max(56, 2 * len(os.listdir("/dev/fd")))
    bounds = [share / limit for share in range(1, limit)]
    path = make(tmp_path, tensors={"a": ShardLayout((64, 4), 0, (64,))}, numbers=numbers, degree=1, bounds=bounds)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with Reader(path) as reader:
            for kind in numbers:
                assert np.array_equal(reader.whole("a", kind), numbers[kind]["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_stays_small_when_columns_are_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "BAND", 64)
    tensors = {"a": ShardLayout((100, 16), 1, (16,))}
    numbers = numbers_of(tensors)
    path = make(tmp_path, tensors=tensors, numbers=numbers, degree=1, bounds=())
    wanted = []
    plain = reader_module.TensorFile.read
    monkeypatch.setattr(
        reader_module.TensorFile, "read", lambda *args: wanted.append(args[3]) or plain(*args), raising=True
    )
    cut = tensors["a"].of(1, 4)
    with Reader(path, threads=1) as reader:
        read = reader.read("a", "weight", cut, 0, cut.count)
    assert np.array_equal(read, slice_of(numbers["weight"]["a"], cut).reshape(-1))
    assert max(wanted) <= 64
    assert len(wanted) == 25


def test_a_manifest_that_is_known_is_not_read_again(tmp_path):
    path = make(tmp_path)
    manifest = read_manifest(path)
    moved = tmp_path / "elsewhere"
    shutil.move(path, moved)
    (moved / "manifest.json").unlink()
    with Reader(moved, manifest) as reader:
        assert reader.whole("final_norm.weight").shape == (6,)


def test_the_thread_that_fails_says_stop_itself():
    """It may begin another task before the failure is known, as it did on a busy host."""
    seen = []

    def work(stop, is_first):
        if is_first:
            raise CheckpointError("damaged")
        seen.append(stop.is_set())

    for _ in range(100):
        stop = threading.Event()
        with pytest.raises(CheckpointError, match="damaged"):
            run_in_threads(partial(work, stop), [True, False], 1, "megads-test", stop)
    assert all(seen)
