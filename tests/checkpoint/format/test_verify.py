"""Whatever changes in a checkpoint is noticed."""

import math
import os
import shutil

import numpy as np
import pytest

from megads.checkpoint.format import verify as module
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.verify import norms, verify
from megads.errors import CheckpointError
from tests.checkpoint.format.test_blocks import rewrite
from tests.checkpoint.format.test_manifest import forge
from tests.checkpoint.made import TENSORS, make, numbers_of

STATES = {"default.cpu": np.arange(40, dtype=np.uint8), "python_numpy": np.frombuffer(b"{}", np.uint8)}


def test_what_was_written_is_right(tmp_path):
    path = make(tmp_path, rng=STATES)
    told = []
    manifest = verify(path, told.append)
    assert manifest == read_manifest(path)
    assert sum(told) == manifest.bytes, "not every byte was read"


def test_each_byte_that_changes_is_noticed(tmp_path):
    """One random bit of every byte of every file, header and manifest included."""
    tensors = {name: TENSORS[name] for name in ("layers.0.attention.out.weight", "final_norm.weight")}
    path = make(tmp_path, tensors=tensors, numbers=numbers_of(tensors, ("weight", "exp_avg")), rng=STATES, bounds=())
    rng = np.random.default_rng(3)
    for file in sorted(path.iterdir()):
        sound = file.read_bytes()
        for at in range(len(sound)):
            content = bytearray(sound)
            content[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(content)
            with pytest.raises(CheckpointError):
                verify(path)
        file.write_bytes(sound)
    verify(path)


def test_each_length_that_is_shorter_or_longer_is_noticed(tmp_path):
    path = make(tmp_path, bounds=())
    for file in sorted(path.iterdir()):
        sound = file.read_bytes()
        for content in (*(sound[:length] for length in range(0, len(sound), 11)), sound + b"\0"):
            file.write_bytes(content)
            with pytest.raises(CheckpointError):
                verify(path)
        file.unlink()
        with pytest.raises(CheckpointError):
            verify(path)
        file.write_bytes(sound)


def test_a_file_of_another_rank_or_checkpoint_is_noticed(tmp_path):
    path = make(tmp_path / "one", tensors=EVEN, degree=2, bounds=())
    other = make(tmp_path / "other", tensors=EVEN, numbers=numbers_of(EVEN, seed=1), degree=2, bounds=())
    first, second = path / "rank-00000.safetensors", path / "rank-00001.safetensors"
    sound = first.read_bytes()
    assert len(sound) == second.stat().st_size, "sizes alone would tell"
    for wrong in (second, other / first.name):
        shutil.copy(wrong, first)
        with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: its header changed since it was written"):
            verify(path)
    first.write_bytes(sound)
    verify(path)


EVEN = {name: cut for name, cut in TENSORS.items() if cut.dim is not None}


def test_a_block_of_another_file_is_noticed(tmp_path):
    """The header is right, the size is right, only the numbers are those of another rank."""
    path = make(tmp_path, tensors=EVEN, degree=2, bounds=())
    first, second = path / "rank-00000.safetensors", path / "rank-00001.safetensors"
    mine, theirs = first.read_bytes(), second.read_bytes()
    data = 8 + int.from_bytes(mine[:8], "little")
    first.write_bytes(mine[:data] + theirs[data:])
    with pytest.raises(CheckpointError, match="block 0 changed since it was written"):
        verify(path)


@pytest.mark.parametrize("key", ["weight/final_norm.weight", "exp_avg_sq/final_norm.weight", "rng/0-0-0/default.cpu"])
def test_a_file_that_holds_other_tensors_than_the_manifest_says(tmp_path, key):
    """Its checksums are right: it was made so."""
    path = make(tmp_path, degree=1, bounds=(), rng=STATES)
    file = path / "rank-00000.safetensors"

    def rename(told):
        return {("other" if name == key else name): each for name, each in told.items()}

    crc = rewrite(file, rename)
    forge(
        path,
        lambda told: told["files"][file.name].update(crc32=f"{crc:08x}", bytes=file.stat().st_size),
    )
    with pytest.raises(CheckpointError, match=r"has (\d+|no) elements, the manifest says (\d+|no)"):
        verify(path)


def test_the_first_damage_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "THREADS", 1)
    path = make(tmp_path, degree=2, bounds=(0.5,))
    manifest = read_manifest(path)
    os.truncate(path / "rank-00000.safetensors", 0)
    told = []
    monkeypatch.setattr(module, "read_manifest", lambda path: manifest)
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: ends too early"):
        verify(path, told.append)
    assert sum(told) < manifest.bytes / 2


def test_norms_are_those_of_whole_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 5)
    numbers = numbers_of(TENSORS)
    numbers["exp_avg"]["final_norm.weight"][2] = np.nan
    for number, degree in enumerate((1, 2, 4)):
        path = make(tmp_path / str(number), numbers=numbers, degree=degree, bounds=(0.1, 0.5))
        with Reader(path) as reader:
            for name in TENSORS:
                for kind, norm in norms(reader, name).items():
                    expected = float(np.linalg.norm(numbers[kind][name].astype(np.float64)))
                    if math.isnan(expected):
                        assert math.isnan(norm)
                    else:
                        assert norm == pytest.approx(expected, rel=1e-12)
