"""What is written comes back; what is damaged is noticed; what is old goes last."""

import json
import os
import resource
import sys

import pytest
import torch

from megads.checkpoint.layout import list_checkpoints
from megads.checkpoint.match import changes
from megads.checkpoint.state import Piece, Progress, Snapshot, find_together, load, prune, save
from megads.config.schema import OptimConfig, RunConfig, TrainConfig
from megads.dist.grid import Grid
from megads.dist.groups import Groups
from megads.errors import CheckpointError
from megads.parallel.tensor import Shard

ALONE = Groups(Grid(), 0)
WEIGHT = {"weight": torch.randn(6, 4), "exp_avg": torch.randn(6, 4), "exp_avg_sq": torch.rand(6, 4)}
NORM = {"weight": torch.ones(4), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}


def snapshot(iteration, **about):
    parameters = [("qkv.weight", Shard(0, (2, 2, 2)), WEIGHT), ("norm.weight", None, NORM)]
    rng = {"default.cpu": torch.get_rng_state()}
    return Snapshot(Progress(iteration, iteration * 8), parameters, {"optimizer_step": 3.0}, rng, about)


def whole(path, manifest):
    """Return all pieces of a checkpoint as one."""
    joined = Piece({}, {})
    for piece in load(path, manifest, ALONE):
        joined.read.update(piece.read)
        joined.rng.update(piece.rng)
    return joined


def test_everything_comes_back_bit_for_bit(tmp_path):
    path = save(tmp_path, snapshot(5), ALONE)
    found = find_together(tmp_path, ALONE)
    assert found.path == path
    restored = whole(path, found.manifest)
    for kind, tensor in WEIGHT.items():
        assert torch.equal(restored.read["qkv.weight"][kind], tensor)
    assert torch.equal(restored.rng["default.cpu"], torch.get_rng_state())
    assert Progress.read(found.manifest) == Progress(5, 40)
    assert found.manifest["scalars"] == {"optimizer_step": 3.0}
    assert found.manifest["tensors"]["qkv.weight"] == {"shape": [6, 4], "dim": 0, "parts": [2, 2, 2]}
    assert found.manifest["tensors"]["norm.weight"] == {"shape": [4], "dim": None, "parts": []}


def test_a_large_state_is_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.state.PIECE_BYTES", 100)
    path = save(tmp_path, snapshot(5), ALONE)
    assert [file.name for file in sorted(path.glob("*.safetensors"))] == [
        "tensor-00000-of-00001-00000.safetensors",
        "tensor-00000-of-00001-00001.safetensors",
    ]
    restored = whole(path, find_together(tmp_path, ALONE).manifest)
    assert torch.equal(restored.read["qkv.weight"]["exp_avg"], WEIGHT["exp_avg"])
    assert torch.equal(restored.read["norm.weight"]["weight"], NORM["weight"])
    assert set(restored.rng) == {"default.cpu"}


def names(folder):
    return [path.name for path in list_checkpoints(folder)]


def test_the_oldest_go_first(tmp_path):
    for iteration in (1, 2, 3, 4):
        save(tmp_path, snapshot(iteration), ALONE, keep=2)
    assert names(tmp_path) == ["iter_0000003", "iter_0000004"]


def test_a_sound_new_checkpoint_outlives_an_abandoned_future(tmp_path):
    for iteration in (50, 100):
        save(tmp_path, snapshot(iteration), ALONE)
    save(tmp_path, snapshot(75), ALONE, keep=1)
    assert names(tmp_path) == ["iter_0000075"]


def test_a_checkpoint_of_the_same_iteration_is_replaced_and_kept_if_that_fails(tmp_path, monkeypatch):
    save(tmp_path, snapshot(5, note="first"), ALONE)
    save(tmp_path, snapshot(5, note="second"), ALONE)
    assert find_together(tmp_path, ALONE).manifest["note"] == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["iter_0000005"]

    replace = os.replace

    def refuse_the_new(source, target):
        if str(source).endswith("iter_0000005.tmp"):
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("megads.checkpoint.state.os.replace", refuse_the_new)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(tmp_path, snapshot(5, note="third"), ALONE)
    assert find_together(tmp_path, ALONE).manifest["note"] == "second"


def test_what_can_not_be_removed_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("megads.checkpoint.state.shutil.rmtree", lambda path, ignore_errors: None)
    for iteration in (1, 2):
        save(tmp_path, snapshot(iteration), ALONE)
    with caplog.at_level("WARNING", logger="megads"):
        prune(tmp_path, tmp_path / "iter_0000002", 1)
    assert names(tmp_path) == ["iter_0000001", "iter_0000002"]


def test_a_changed_byte_is_noticed(tmp_path):
    path = save(tmp_path, snapshot(5), ALONE)
    shard = next(path.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    found = find_together(tmp_path, ALONE)
    with pytest.raises(CheckpointError, match="its content changed since it was written"):
        whole(path, found.manifest)


def test_a_disk_that_fills_up_leaves_the_older_checkpoint_and_no_half(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off too
    save(tmp_path, snapshot(1), ALONE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"was not saved: rank 0: .*older checkpoints are as they were"):
            save(tmp_path, snapshot(2), ALONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["iter_0000001"]


def test_another_versions_progress_is_refused_in_words(tmp_path):
    path = save(tmp_path, snapshot(5), ALONE)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["progress"]["epochs"] = 3
    with pytest.raises(CheckpointError, match="progress can not be read"):
        Progress.read(manifest)


def run(**train):
    return RunConfig(train=TrainConfig(global_batch=8, train_iters=10, **train), optim=OptimConfig(lr=1e-3))


def test_the_same_settings_change_nothing():
    assert changes(run().model_dump(), run()) == []
    assert changes(run().model_dump(), run(force=True, exit_interval=3, micro_batch=2)) == []


def test_changed_science_is_named():
    after = run(seed=7, dtype="fp32").model_copy(update={"optim": OptimConfig(lr=1e-4)})
    assert changes(run().model_dump(), after) == [
        "had train.dtype=bf16, this run has fp32",
        "had train.seed=1234, this run has 7",
        "had optim.lr=0.001, this run has 0.0001",
    ]


def test_another_length_changes_the_order_of_the_data():
    longer = RunConfig(train=TrainConfig(global_batch=8, train_iters=20), optim=OptimConfig(lr=1e-3))
    assert "planned 80 samples, this run plans 160" in changes(run().model_dump(), longer)[-1]
