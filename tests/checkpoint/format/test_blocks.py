"""One file: what is written is read back, another program reads it too, and every changed bit is noticed."""

import json
import os
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from megads.checkpoint.format import blocks
from megads.checkpoint.format.blocks import Entry, TensorFile, write_file
from megads.errors import CheckpointError


def numbers(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def write(path, **tensors):
    return write_file(path, [Entry.of(key, tensor) for key, tensor in tensors.items()])


def rewrite(path, change=None, data=None):
    """Change a file's header, or what follows it, and return the header's checksum: a forger, not an accident."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end]
    if change is not None:
        told = json.loads(header)
        changed = change(told)
        header = changed if isinstance(changed, bytes) else json.dumps(told if changed is None else changed).encode()
    text = len(header).to_bytes(8, "little") + header
    path.write_bytes(text + (content[end:] if data is None else data))
    return zlib.crc32(text)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5), st.sampled_from((16, 64, 100)), st.integers(1, 300), st.data()
)
def test_any_part_of_any_tensor_comes_back(tmp_path_factory, sizes, block, at_once, data):
    tensors = {f"weight/{number}": numbers(size, number) for number, size in enumerate(sizes)}
    path = tmp_path_factory.mktemp("file") / "f.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        patch.setattr(blocks, "AT_ONCE", at_once)
        size, crc = write(path, **tensors)
        assert size == path.stat().st_size
        with TensorFile(path, crc) as file:
            for key, tensor in tensors.items():
                first = data.draw(st.integers(0, tensor.size))
                count = data.draw(st.integers(0, tensor.size - first))
                assert np.array_equal(file.read(key, first, count), tensor[first : first + count])
                assert np.array_equal(file.read(key), tensor)
            assert sum(file.check()) == file.length == sum(tensor.nbytes for tensor in tensors.values())


def test_chunks_are_written_one_after_another(tmp_path):
    whole = numbers(1000)
    entries = [
        Entry("weight/a", whole.dtype, 1000, lambda: (whole[at : at + 300] for at in range(0, 1000, 300))),
        Entry.of("rng/x", np.arange(5, dtype=np.uint8)),
    ]
    _, crc = write_file(tmp_path / "f.safetensors", entries)
    with TensorFile(tmp_path / "f.safetensors", crc) as file:
        assert np.array_equal(file.read("weight/a"), whole)
        assert file.read("rng/x").tolist() == [0, 1, 2, 3, 4]


def test_an_entry_that_lies_about_its_length_is_a_bug(tmp_path):
    short = Entry("weight/a", np.dtype("<f4"), 10, lambda: (numbers(9),))
    with pytest.raises(AssertionError, match=r"weight/a has -4 bytes more"):
        write_file(tmp_path / "f.safetensors", [short])


def test_the_safetensors_library_reads_it(tmp_path):
    tensors = {"weight/a": numbers(7), "exp_avg/a": numbers(0), "rng/0-0-0/cpu": np.arange(3, dtype=np.uint8)}
    path = tmp_path / "f.safetensors"
    write(path, **tensors)
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert found[key].dtype == tensor.dtype
        assert np.array_equal(found[key], tensor)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 64 == 56, "data does not begin at a multiple of 64"


def test_small_parts_share_the_reading_of_a_block(tmp_path, monkeypatch):
    path = tmp_path / "f.safetensors"
    _, crc = write(path, a=numbers(100))
    reads = []
    plain = os.preadv
    with TensorFile(path, crc) as file:
        monkeypatch.setattr(os, "preadv", lambda handle, to, at: reads.append(at) or plain(handle, to, at))
        for first in range(0, 100, 10):
            file.read("a", first, 10)
        other = threading.Thread(target=file.read, args=("a", 0, 10))
        other.start()
        other.join()
    assert len(reads) == 2, "each thread reads the block once"


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_each_bit_that_changes_is_noticed(tmp_path, monkeypatch, block):
    monkeypatch.setattr(blocks, "BLOCK", block)
    path = tmp_path / "f.safetensors"
    _, crc = write(path, **{"weight/a": numbers(30), "rng/x": np.arange(7, dtype=np.uint8)})
    sound = path.read_bytes()
    rng = np.random.default_rng(1)
    for at in range(len(sound)):
        content = bytearray(sound)
        content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="changed since it was written"):
            _read_all(path, crc)
    path.write_bytes(sound)
    _read_all(path, crc)


def _read_all(path, crc):
    with TensorFile(path, crc) as file:
        for _ in file.check():
            pass


def test_each_truncation_is_noticed(tmp_path):
    path = tmp_path / "f.safetensors"
    _, crc = write(path, a=numbers(30))
    sound = path.read_bytes()
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        with pytest.raises(CheckpointError, match=r"f\.safetensors: "):
            _read_all(path, crc)


def test_a_file_that_shrinks_while_it_is_open_is_noticed(tmp_path):
    path = tmp_path / "f.safetensors"
    size, crc = write(path, a=numbers(30))
    with TensorFile(path, crc) as file:
        os.truncate(path, size - 1)
        with pytest.raises(CheckpointError, match="ends too early"):
            file.read("a")


@pytest.mark.parametrize(
    "change",
    [
        lambda told: b"",
        lambda told: b"{",
        lambda told: b"[" * 100_000,
        lambda told: b"\xff\xfe",
        lambda told: b'{"a": NaN}',
        lambda told: [],
        lambda told: "text",
        lambda told: told.pop("__metadata__") and None,
        lambda told: told.update(__metadata__=[1]),
        lambda told: told["__metadata__"].update(crc32=5),
        lambda told: told["__metadata__"].update(crc32="0"),
        lambda told: told["__metadata__"].update(crc32="z" * 8),
        lambda told: told["__metadata__"].update(crc32="0" * 16),
        lambda told: told["__metadata__"].update(block_bytes="0"),
        lambda told: told["__metadata__"].update(block_bytes="-5"),
        lambda told: told["__metadata__"].update(block_bytes=str(1 << 60)),
        lambda told: told["__metadata__"].update(block_bytes="9" * 5000),
        lambda told: told["__metadata__"].update(block_bytes="many"),
        lambda told: told.update(a=7),
        lambda told: told["a"].update(dtype="F64"),
        lambda told: told["a"].update(dtype=[]),
        lambda told: told["a"].update(shape=[]),
        lambda told: told["a"].update(shape=[3, 10]),
        lambda told: told["a"].update(shape=[-30]),
        lambda told: told["a"].update(shape=[1 << 61]),
        lambda told: told["a"].update(shape=[float("nan")]),
        lambda told: told["a"].update(shape=[True]),
        lambda told: told["a"].update(data_offsets=[0]),
        lambda told: told["a"].update(data_offsets=[4, 124]),
        lambda told: told["a"].update(data_offsets=[-120, 0]),
        lambda told: told["a"].update(data_offsets=[0, 1 << 62], shape=[1 << 60]),
        lambda told: told.update(b={"dtype": "F32", "shape": [30], "data_offsets": [0, 120]}),
        lambda told: told.update(b={"dtype": "F32", "shape": [30], "data_offsets": [120, 240]}),
        lambda told: told.pop("a") and None,
    ],
)
def test_a_header_that_is_none_is_refused_in_one_line(tmp_path, change):
    """Also when its checksum is right: nothing that a file tells is believed, and no memory is taken for it."""
    path = tmp_path / "f.safetensors"
    write(path, a=numbers(30))
    crc = rewrite(path, change)
    with pytest.raises(CheckpointError, match=r"f\.safetensors: not a checkpoint file") as raised:
        TensorFile(path, crc)
    assert len(str(raised.value)) < len(str(path)) + 200


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 8, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_what_is_no_file_of_ours_is_refused(tmp_path, content):
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"f\.safetensors: (its header|ends too early)"):
        TensorFile(path, zlib.crc32(content))


def test_more_or_less_data_than_the_header_tells_of(tmp_path):
    path = tmp_path / "f.safetensors"
    write(path, a=numbers(30))
    for data in (b"", bytes(119), bytes(121)):
        crc = rewrite(path, data=data)
        with pytest.raises(CheckpointError, match="not a checkpoint file"):
            TensorFile(path, crc)


def test_what_can_not_be_opened_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        TensorFile(tmp_path / "none.safetensors", 0)
    with pytest.raises(CheckpointError, match="Is a directory"):
        TensorFile(tmp_path, 0)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match=r"pipe\.safetensors"):
        TensorFile(tmp_path / "pipe.safetensors", 0)


def test_numbers_that_are_not_there_are_refused(tmp_path):
    path = tmp_path / "f.safetensors"
    _, crc = write(path, a=numbers(30))
    with TensorFile(path, crc) as file:
        with pytest.raises(CheckpointError, match="holds no b; it is not what the manifest says"):
            file.read("b")
        for first, count in ((0, 31), (30, 1), (-1, 2), (1 << 62, 1)):
            with pytest.raises(CheckpointError, match="a has 30 elements"):
                file.read("a", first, count)
        with pytest.raises(CheckpointError, match=r"a has 30 elements float32, expected uint8"):
            file.fill("a", 0, np.empty(4, np.uint8))


def test_a_write_that_fails_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "no" / "f.safetensors", a=numbers(1))
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path.joinpath("/dev/full"), a=numbers(1))
