import json

import pytest

from megads.checkpoint.layout import files_of, find_latest, list_checkpoints, read_manifest, remove_unfinished
from megads.errors import CheckpointError

SHARD = "stage-00000-of-00001-tensor-00000-of-00001-00000.safetensors"


def make(folder, iteration, data=b"12345", **changes):
    path = folder / f"iter_{iteration:07d}"
    path.mkdir(parents=True)
    (path / SHARD).write_bytes(data)
    manifest = {
        "format": 2,
        "files": {SHARD: {"bytes": 5, "crc32": 0}},
        "progress": {"iteration": iteration},
    }
    (path / "manifest.json").write_text(json.dumps(manifest | changes))
    return path


def test_no_folder_means_a_new_run(tmp_path):
    assert find_latest(tmp_path / "nothing") is None


def test_the_newest_is_taken_by_number_not_by_name(tmp_path):
    make(tmp_path, 9_999_999)
    newest = make(tmp_path, 10_000_000)
    assert find_latest(tmp_path).path == newest
    assert len(list_checkpoints(tmp_path)) == 2


def test_a_half_written_checkpoint_is_not_one(tmp_path):
    sound = make(tmp_path, 50)
    (tmp_path / "iter_0000100.tmp").mkdir()
    assert find_latest(tmp_path).path == sound
    remove_unfinished(tmp_path)
    assert not (tmp_path / "iter_0000100.tmp").exists()


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path):
    sound = make(tmp_path, 50)
    make(tmp_path, 100, data=b"123")
    found = find_latest(tmp_path)
    assert found.path == sound
    assert "iter_0000100" in found.broken[0]
    assert "3 bytes, the manifest says 5" in found.broken[0]


def test_when_all_are_damaged_the_run_does_not_start_over(tmp_path):
    make(tmp_path, 50, data=b"123")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read .*RUN_NAME"):
        find_latest(tmp_path)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda path: (path / "manifest.json").unlink(), "not a readable manifest"),
        (lambda path: (path / "manifest.json").write_text('{"format": 1'), "not a readable manifest"),
        (lambda path: (path / "manifest.json").write_text("[]"), "not a readable manifest"),
        (lambda path: (path / SHARD).unlink(), "no bytes, the manifest says 5"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path, break_it, message):
    path = make(tmp_path, 50)
    break_it(path)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(path)


def test_a_later_format_is_refused_by_number(tmp_path):
    with pytest.raises(CheckpointError, match="format 3, this version reads 1 and 2; resume with the version"):
        read_manifest(make(tmp_path, 50, format=3))


def test_only_files_that_hold_what_is_wanted_are_named():
    tensors = {"a": {"files": ["f0", "f1"]}, "b": {"files": ["f0", "f1"]}, "c": {"files": ["g0", "g1"]}}
    manifest = {"format": 2, "tensors": tensors}
    assert files_of(manifest, ["a", "b"], 1) == {"f1": ["a", "b"]}
    assert files_of(manifest, ["c", "b", "no-such"], 0) == {"g0": ["c"], "f0": ["b"]}
