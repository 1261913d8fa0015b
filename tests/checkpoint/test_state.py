"""What is written comes back; what is damaged is noticed; what is old goes last."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from megads.checkpoint.layout import list_checkpoints, read_manifest
from megads.checkpoint.match import changes
from megads.checkpoint.state import Progress, Snapshot, crc32, find_together, load, load_rng, prune, save
from megads.config.schema import OptimConfig, RunConfig, TrainConfig
from megads.dist.grid import Grid
from megads.dist.groups import Groups
from megads.errors import CheckpointError
from megads.parallel.tensor import Shard
from tests.ranks import groups_of, run_ranks

ALONE = Groups(Grid(), 0)
WEIGHT = {"weight": torch.randn(6, 4), "exp_avg": torch.randn(6, 4), "exp_avg_sq": torch.rand(6, 4)}
NORM = {"weight": torch.ones(4), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}


def snapshot(iteration, **about):
    parameters = [("qkv.weight", Shard(0, (2, 2, 2)), WEIGHT), ("norm.weight", None, NORM)]
    rng = {"default.cpu": torch.get_rng_state()}
    return Snapshot(Progress(iteration, iteration * 8), parameters, {"optimizer_step": 3.0}, rng, about)


NAMES = ("qkv.weight", "norm.weight")


def whole(path, manifest, names=NAMES, groups=ALONE):
    """Return all that the files of a checkpoint give, as one."""
    joined = {}
    for read in load(path, manifest, groups, names):
        joined |= read
    return joined


def test_everything_comes_back_bit_for_bit(tmp_path):
    path = save(tmp_path, snapshot(5), ALONE)
    found = find_together(tmp_path, ALONE)
    assert found.path == path
    restored = whole(path, found.manifest)
    for kind, tensor in WEIGHT.items():
        assert torch.equal(restored["qkv.weight"][kind], tensor)
    assert torch.equal(load_rng(path, found.manifest, ALONE)["default.cpu"], torch.get_rng_state())
    assert Progress.read(found.manifest) == Progress(5, 40)
    assert found.manifest["scalars"] == {"optimizer_step": 3.0}
    files = ["stage-00000-of-00001-tensor-00000-of-00001-00000.safetensors"]
    tensors = found.manifest["tensors"]
    assert tensors["qkv.weight"] == {"shape": [6, 4], "dim": 0, "parts": [2, 2, 2], "files": files}
    assert tensors["norm.weight"] == {"shape": [4], "dim": None, "parts": [], "files": files}


def test_a_large_state_is_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.state.PIECE_BYTES", 100)
    path = save(tmp_path, snapshot(5), ALONE)
    assert [file.name for file in sorted(path.glob("*.safetensors"))] == [
        "rng-pipe-00000-seq-00000-tensor-00000.safetensors",
        "stage-00000-of-00001-tensor-00000-of-00001-00000.safetensors",
        "stage-00000-of-00001-tensor-00000-of-00001-00001.safetensors",
    ]
    manifest = find_together(tmp_path, ALONE).manifest
    restored = whole(path, manifest)
    assert torch.equal(restored["qkv.weight"]["exp_avg"], WEIGHT["exp_avg"])
    assert torch.equal(restored["norm.weight"]["weight"], NORM["weight"])
    assert set(load_rng(path, manifest, ALONE)) == {"default.cpu"}


def test_what_is_not_wanted_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.checkpoint.state.PIECE_BYTES", 100)
    path = save(tmp_path, snapshot(5), ALONE)
    manifest = find_together(tmp_path, ALONE).manifest
    (path / manifest["tensors"]["qkv.weight"]["files"][0]).unlink()
    assert set(whole(path, manifest, ["norm.weight", "no-such.weight"])) == {"norm.weight"}
    with pytest.raises(CheckpointError, match="No such file"):
        whole(path, manifest)


def test_a_checkpoint_of_format_1_is_read(tmp_path):
    """One stage, generator states among the tensors, and no word on which file holds what."""
    path = tmp_path / "iter_0000007"
    path.mkdir()
    name = "tensor-00000-of-00001-00000.safetensors"
    tensors = {f"{kind}/qkv.weight": tensor for kind, tensor in WEIGHT.items()}
    save_file({**tensors, "rng/default.cpu": torch.get_rng_state()}, path / name)
    facts = {"bytes": (path / name).stat().st_size, "crc32": crc32(path / name)}
    layout = {"pipe": 1, "data": 2, "seq": 1, "tensor": 1}
    (path / "manifest.json").write_text(json.dumps({"format": 1, "layout": layout, "files": {name: facts}}))
    found = find_together(tmp_path, ALONE)
    restored = whole(path, found.manifest)
    assert set(restored) == {"qkv.weight"}
    assert torch.equal(restored["qkv.weight"]["weight"], WEIGHT["weight"])
    assert torch.equal(load_rng(path, found.manifest, ALONE)["default.cpu"], torch.get_rng_state())


def _of_stage(groups):
    """Return this rank's snapshot of a model of two stages: what it holds tells where it comes from."""
    stage, rank = groups.pipe_rank, groups.tensor_rank
    number = torch.tensor([[10.0 * stage + rank]])
    local = {"weight": number, "exp_avg": number + 100}
    own = {"weight": torch.full((3,), float(stage))}
    parameters = [(f"{stage}.split", Shard(1, (groups.tensor_size,)), local), (f"{stage}.whole", None, own)]
    place = torch.tensor([groups.coordinate[axis] for axis in ("pipe", "seq", "tensor")])
    return Snapshot(Progress(3), parameters, {}, {"place": place})


def _other_layouts_read_it(folder) -> None:
    wrote = groups_of(pipe=2, tensor=2)
    path = save(Path(folder), _of_stage(wrote), wrote)
    manifest = read_manifest(path)
    assert manifest["tensors"]["1.split"]["shape"] == [1, 2]
    assert [name.split("-tensor")[0] for name in manifest["tensors"]["1.split"]["files"]] == [
        "stage-00001-of-00002"
    ] * 2
    assert len(list(path.glob("stage-*"))) == len(list(path.glob("rng-*"))) == 4

    names = [f"{stage}.{kind}" for stage in (0, 1) for kind in ("split", "whole")]
    one_stage = groups_of(data=2, tensor=2)
    read = whole(path, manifest, names, one_stage)
    assert [float(read[f"{stage}.split"]["weight"]) for stage in (0, 1)] == [
        10.0 * stage + one_stage.tensor_rank for stage in (0, 1)
    ]
    assert [float(read[f"{stage}.whole"]["weight"][0]) for stage in (0, 1)] == [0.0, 1.0]
    assert load_rng(path, manifest, one_stage) is None
    where = [wrote.coordinate[axis] for axis in ("pipe", "seq", "tensor")]
    assert load_rng(path, manifest, wrote)["place"].tolist() == where
    with pytest.raises(CheckpointError, match="written with TP=2, this run has TP=4"):
        whole(path, manifest, names, groups_of(tensor=4))


def _ranks_of_the_first_sample_write(folder) -> None:
    groups = groups_of(data=2, seq=2)
    path = save(Path(folder), _of_stage(groups), groups)
    manifest = read_manifest(path)
    assert len(list(path.glob("stage-*"))) == 1
    assert len(list(path.glob("rng-*"))) == 2
    assert load_rng(path, manifest, groups)["place"].tolist() == [0, groups.seq_rank, 0]
    assert load_rng(path, manifest, groups_of(data=4)) is None


@pytest.mark.dist
@pytest.mark.parametrize("check", [_other_layouts_read_it, _ranks_of_the_first_sample_write])
def test_stages_and_tensor_ranks_write_their_own_and_other_layouts_read_it(check, tmp_path):
    run_ranks(4, check, str(tmp_path))


def _one_rank_can_not_write(folder) -> None:
    groups = groups_of(pipe=2)
    target = Path(folder) / "checkpoints"
    if groups.rank == 0:
        save(target, snapshot(1), ALONE)
    torch.distributed.barrier()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if groups.pipe_rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(CheckpointError, match="was not saved: rank 1: "):
            save(target, _of_stage(groups), groups)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in target.iterdir()] == ["iter_0000001"]


@pytest.mark.dist
def test_a_stage_that_can_not_write_is_heard_by_all(tmp_path):
    run_ranks(2, _one_rank_can_not_write, str(tmp_path))


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


@pytest.mark.parametrize(("kind", "read"), [("stage", whole), ("rng", lambda *where: load_rng(*where, ALONE))])
def test_a_changed_byte_is_noticed(tmp_path, kind, read):
    path = save(tmp_path, snapshot(5), ALONE)
    shard = next(path.glob(f"{kind}-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    found = find_together(tmp_path, ALONE)
    with pytest.raises(CheckpointError, match="its content changed since it was written"):
        read(path, found.manifest)


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


def test_a_plan_counts_the_samples_of_a_growing_batch_and_knows_settings_that_are_newer_than_the_checkpoint():
    before = run().model_dump()
    del before["train"]["rampup_batch_size"], before["train"]["skip_iterations"], before["data"]["num_workers"]
    assert changes(before, run()) == []
    assert changes(before, run(rampup_batch_size="4 4 16")) == [
        "had train.rampup_batch_size=, this run has 4 4 16",
        "planned 80 samples, this run plans 64: they come in another order now, so that samples seen before may be "
        "seen again",
    ]
