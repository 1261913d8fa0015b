"""Every rank writes its own numbers; all of them become a checkpoint, or nothing does."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megads.checkpoint.format.folders import list_checkpoints, remove_unfinished
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.owned_shard import OwnedShard
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.save import FAILED, IDLE, WRITING, Saver, Snapshot, _gather, _Written
from megads.comm import messages
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.errors import CheckpointError
from tests.disks import file_limit, small_disk
from tests.ranks import groups_of, run_ranks

ALONE = Groups(Grid(), 0)
KINDS = ("weight", "exp_avg", "exp_avg_sq")
QKV, NORM = ShardLayout((12, 4), 0, (4, 4, 4)), ShardLayout((4,))
WHOLE = {
    "qkv": {kind: torch.arange(48.0).view(12, 4) + 100 * i for i, kind in enumerate(KINDS)},
    "norm": {kind: torch.arange(4.0) - 10 * (i + 1) for i, kind in enumerate(KINDS)},
}


def pieces_of(groups: Groups, kinds: tuple[str, ...] = KINDS, times: int = 1) -> list[OwnedShard]:
    """Return what this rank of data x tensor holds of WHOLE: a data-parallel share of its slice, cut unevenly."""
    found = []
    for name, cut in (("qkv", QKV), ("norm", NORM)):
        local = cut.of(groups.tensor_rank, groups.tensor_size)
        rows = torch.cat([part.chunk(groups.tensor_size)[groups.tensor_rank] for part in torch.arange(12).split(4)])
        flat = {kind: (tensor[rows] if name == "qkv" else tensor).flatten() for kind, tensor in WHOLE[name].items()}
        bounds = [i * (local.count - 1) // groups.data_size for i in range(groups.data_size)] + [local.count]
        first, last = bounds[groups.data_rank : groups.data_rank + 2]
        found.append(OwnedShard(name, local, first, {kind: flat[kind][first:last].clone() * times for kind in kinds}))
    return found


def snapshot(groups: Groups, iteration: int, **more: object) -> Snapshot:
    pieces = pieces_of(groups, **more)  # type: ignore[arg-type]
    return Snapshot(
        progress=Progress(iteration, iteration * 8),
        shards=pieces,
        # As runs do: who leaves the optimizer out leaves its counts out.
        scalars={"optimizer_step": 3.0} if len(pieces[0].tensors) > 1 else {},
        tensors={"qkv": QKV, "norm": NORM},
        model={"vocab_size": 4},
        settings={"train": {"seed": 1}},
        about={"note": "test"},
        layout={**{axis: groups.grid.degree(axis) for axis in ("pipe", "data", "seq", "tensor")}, "zero_stage": 1},
    )


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def check_whole(path: Path, times: int = 1) -> None:
    with Reader(path) as reader:
        for name, kinds in WHOLE.items():
            for kind, tensor in kinds.items():
                assert torch.equal(torch.from_numpy(reader.whole(name, kind)), tensor * times)


def test_everything_comes_back_bit_for_bit(tmp_path):
    saver = Saver(tmp_path / "a" / "b", ALONE)
    path = saver.save(snapshot(ALONE, 5))
    assert path == tmp_path / "a" / "b" / "iter_0000005"
    check_whole(path)
    with Reader(path) as reader:
        manifest = reader.manifest
    assert manifest.kinds == KINDS
    assert Progress.read(manifest.progress) == Progress(5, 40)
    assert manifest.scalars == {"optimizer_step": 3.0}
    assert (manifest.model, manifest.about) == ({"vocab_size": 4}, {"note": "test"})
    assert names(path) == ["manifest.json", "rank-00000.safetensors"]
    assert saver.work_s > 0


def test_weights_lie_before_moments(tmp_path):
    path = Saver(tmp_path, ALONE).save(snapshot(ALONE, 5))
    with Reader(path) as reader:
        entries = reader.open("rank-00000.safetensors").entries
        assert list(entries) == [f"{kind}/{name}" for kind in KINDS for name in WHOLE]


def test_only_weights(tmp_path):
    path = Saver(tmp_path, ALONE).save(snapshot(ALONE, 5, kinds=("weight",)))
    with Reader(path) as reader:
        assert reader.manifest.kinds == ("weight",)
        assert not reader.manifest.has_optimizer


def _all_write_their_own(folder: str, background: bool) -> None:
    groups = groups_of(data=2, tensor=2)
    saver = Saver(Path(folder), groups)
    if background:
        saver.start(snapshot(groups, 3))
        path = saver.finish()
    else:
        path = saver.save(snapshot(groups, 3))
    check_whole(path)
    with Reader(path) as reader:
        # What is whole on both tensor ranks is saved by the first.
        manifest = reader.manifest
        held = {name: {piece[0] for piece in manifest.contents(name)} for name in manifest.files}
        assert held == {
            "rank-00000.safetensors": {"qkv", "norm"},
            "rank-00001.safetensors": {"qkv"},
            "rank-00002.safetensors": {"qkv", "norm"},
            "rank-00003.safetensors": {"qkv"},
        }
        assert not manifest.has_generators
        assert [file.tensor for file in manifest.files.values()] == [0, 1, 0, 1]


def _facts_arrive_by_rank() -> None:
    rank, real = dist.get_rank(), messages.dist.gather
    for grid, most in (({"pipe": 2, "data": 2}, 2), ({"seq": 2, "tensor": 2}, 2), ({"data": 4}, 4), ({"pipe": 4}, 4)):
        heard = []

        def gather(mine, found, *args, heard=heard, **kwargs):
            heard.append(len(found or ()))
            return real(mine, found, *args, **kwargs)

        messages.dist.gather = gather
        try:
            found = _gather(_Written(problem=f"of {rank}"), groups_of(**grid))
        finally:
            messages.dist.gather = real
        assert [each.problem for each in found] == ([f"of {each}" for each in range(4)] if rank == 0 else [])
        assert max(heard) <= most


@pytest.mark.dist
def test_rank_0_hears_from_one_rank_of_each_slice():
    run_ranks(4, _facts_arrive_by_rank)


def _nothing_to_write(folder: str) -> None:
    groups = groups_of(data=2)
    given = snapshot(groups, 3)
    if groups.data_rank == 1:
        empty = OwnedShard("norm", NORM, 4, {kind: torch.empty(0) for kind in KINDS})
        given = Snapshot(**{**vars(given), "shards": [empty]})
    else:
        given = Snapshot(**{**vars(given), "shards": pieces_of(ALONE)})
    path = Saver(Path(folder), groups).save(given)
    assert names(path) == ["manifest.json", "rank-00000.safetensors"]
    check_whole(path)


@pytest.mark.dist
@pytest.mark.parametrize("background", [False, True])
def test_every_rank_writes_what_it_owns_and_together_it_is_all(tmp_path, background):
    run_ranks(4, _all_write_their_own, str(tmp_path), background)


@pytest.mark.dist
def test_a_rank_with_nothing_to_write_writes_no_file(tmp_path):
    run_ranks(2, _nothing_to_write, str(tmp_path))


def test_in_the_background_a_copy_is_written_while_training_goes_on(tmp_path, monkeypatch):
    may_write = threading.Event()
    from megads.checkpoint import save

    write_file = save.write_file

    def slow(*args):
        assert may_write.wait(60)
        return write_file(*args)

    monkeypatch.setattr(save, "write_file", slow)
    saver = Saver(tmp_path, ALONE)
    given = snapshot(ALONE, 2)
    assert saver.reserve(given.shards) == 4 * 3 * (48 + 4)
    kept = {key: tensor.data_ptr() for key, tensor in saver.copy._tensors.items()}
    saver.start(given)
    assert saver.is_writing
    assert saver.state == WRITING
    for piece in given.shards:
        for tensor in piece.tensors.values():
            tensor.fill_(-1.0)  # the next step
    assert list_checkpoints(tmp_path) == []
    may_write.set()
    path = saver.finish()
    assert not saver.is_writing
    assert saver.state == IDLE
    check_whole(path)
    saver.start(snapshot(ALONE, 4, times=2))
    assert {key: saver.copy._tensors[key].data_ptr() for key in kept} == kept  # memory is taken once
    check_whole(saver.finish(), times=2)


def test_a_save_is_not_begun_before_the_one_before_it_is_finished(tmp_path):
    saver = Saver(tmp_path, ALONE)
    saver.start(snapshot(ALONE, 1))
    for begin in (saver.start, saver.save):
        with pytest.raises(AssertionError, match="not finished"):
            begin(snapshot(ALONE, 2))
    saver.finish()
    assert names(tmp_path) == ["iter_0000001"]


@pytest.mark.parametrize("background", [False, True])
def test_old_ones_go_and_multiples_stay(tmp_path, background):
    saver = Saver(tmp_path, ALONE, keep=2, keep_every=3)
    for iteration in range(1, 8):
        saver.start(snapshot(ALONE, iteration))
        saver.finish()
    saver.save(snapshot(ALONE, 8))
    assert names(tmp_path) == [f"iter_000000{i}" for i in (3, 6, 7, 8)]


def test_a_checkpoint_of_the_same_iteration_is_replaced(tmp_path):
    saver = Saver(tmp_path, ALONE)
    saver.save(snapshot(ALONE, 5))
    path = saver.save(snapshot(ALONE, 5, times=3))
    check_whole(path, times=3)
    assert names(tmp_path) == ["iter_0000005"]


def _save_on(saver: Saver, given: Snapshot, background: bool) -> str:
    """Return why ``given`` could not be saved."""
    if background:
        saver.start(given)
    with pytest.raises(CheckpointError, match="was not saved") as told:
        saver.finish() if background else saver.save(given)
    return str(told.value)


def _disk_fills_up(folder: str, background: bool) -> None:
    """Rank 1 alone has more to write than there is room."""
    groups = groups_of(data=2)
    saver = Saver(Path(folder) / "checkpoints", groups)
    saver.save(snapshot(groups, 1))
    large = snapshot(groups, 2)
    if groups.rank == 1:
        big, cut = dict.fromkeys(KINDS, torch.zeros(1 << 18)), ShardLayout((1 << 18,))
        more = {"shards": [*large.shards, OwnedShard("big", cut, 0, big)], "tensors": {**large.tensors, "big": cut}}
        large = Snapshot(**{**vars(large), **more})
    why = _save_on(saver, large, background)
    # Rank 0, which writes at the same time, may find the disk full, too.
    part = f"{folder}/checkpoints/iter_0000002.tmp"
    problem = rf"rank [01]: {part}: No space left on device"
    assert re.fullmatch(f"the checkpoint was not saved: {problem}; older checkpoints are unchanged", why)
    dist.barrier()
    assert names(Path(folder) / "checkpoints") == ["iter_0000001"]
    check_whole(Path(folder) / "checkpoints" / "iter_0000001")
    dist.barrier()
    path = saver.save(snapshot(groups, 2))
    check_whole(path)


@pytest.mark.dist
@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_leaves_the_older_checkpoint_and_no_half(tmp_path, background):
    with small_disk(tmp_path / "disk", 512) as disk:
        run_ranks(2, _disk_fills_up, str(disk), background)


@pytest.mark.parametrize("background", [False, True])
def test_a_file_that_may_not_grow_leaves_the_older_checkpoint_and_no_half(tmp_path, monkeypatch, background):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut off too
    saver = Saver(tmp_path, ALONE)
    saver.save(snapshot(ALONE, 1))
    with file_limit(200):
        assert "rank 0: " in (why := _save_on(saver, snapshot(ALONE, 2), background))
    assert "iter_0000002.tmp: File too large; older checkpoints are unchanged" in why
    assert names(tmp_path) == ["iter_0000001"]
    check_whole(tmp_path / "iter_0000001")


def _others_stop_writing(folder: str) -> None:
    """Rank 1 fails at once; rank 0, which would write for minutes, gives up when it hears of it."""
    groups = groups_of(data=2)
    saver = Saver(Path(folder), groups)
    from megads.checkpoint import save

    write_file, may_go_on = save.write_file, threading.Event()

    def slow(path, entries):
        if groups.rank == 0:
            assert may_go_on.wait(60)
            return write_file(path, entries)
        raise OSError(5, "Input/output error")

    save.write_file = slow
    try:
        saver.start(snapshot(groups, 2))
        if groups.rank == 0:
            assert saver.state == WRITING
            threading.Timer(0.2, may_go_on.set).start()
        else:
            saver._background.thread.join()
            assert saver.state == FAILED
        with pytest.raises(CheckpointError, match=r"rank 1: .*Input/output error"):
            saver.finish(FAILED)
    finally:
        save.write_file = write_file
    assert names(Path(folder)) == []
    dist.barrier()
    check_whole(saver.save(snapshot(groups, 3)))


@pytest.mark.dist
def test_ranks_give_up_when_one_has_failed(tmp_path):
    run_ranks(2, _others_stop_writing, str(tmp_path))


def _rank_0_can_not_commit(folder: str) -> None:
    groups = groups_of(data=2)
    target = Path(folder)
    saver = Saver(target, groups)
    saver.save(snapshot(groups, 1))
    before, replace = names(target / "iter_0000001"), os.replace

    def refuse(source, goal):
        if str(source).endswith("iter_0000001.tmp"):
            raise OSError(5, "Input/output error")
        replace(source, goal)

    os.replace = refuse
    try:
        with pytest.raises(CheckpointError, match=r"rank 0: .*iter_0000001: Input/output error"):
            saver.save(snapshot(groups, 1, times=2))
    finally:
        os.replace = replace
    assert names(target) == ["iter_0000001"]
    assert names(target / "iter_0000001") == before
    check_whole(target / "iter_0000001")


@pytest.mark.dist
def test_a_checkpoint_that_can_not_be_made_visible_is_heard_of_by_all_and_its_predecessor_stays(tmp_path):
    run_ranks(2, _rank_0_can_not_commit, str(tmp_path))


def test_what_a_killed_save_left_is_gone_after_the_next_start(tmp_path):
    saver = Saver(tmp_path, ALONE)
    saver.save(snapshot(ALONE, 1))
    saver.start(snapshot(ALONE, 2))
    saver._background.thread.join()  # and now the process is killed
    assert names(tmp_path) == ["iter_0000001", "iter_0000002.tmp"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["iter_0000001"]
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["iter_0000001"]


@pytest.mark.parametrize("goes_back", [False, True])
def test_the_future_that_was_given_up_goes_before_the_new_one_is_there(tmp_path, monkeypatch, goes_back):
    """Killed at any moment, a run that went back does not find the newest of what it gave up."""
    before = Saver(tmp_path, ALONE)
    for iteration in (1, 4, 5):
        before.save(snapshot(ALONE, iteration))
    replace, seen = os.replace, []

    def look(source, goal):
        replace(source, goal)
        if str(source).endswith("0000002.tmp"):
            seen.extend(path.name for path in list_checkpoints(tmp_path))

    monkeypatch.setattr(os, "replace", look)
    saver = Saver(tmp_path, ALONE, gives_up_later=goes_back)
    saver.save(snapshot(ALONE, 2))
    saver.join_sweeper()
    stay = ["iter_0000001", "iter_0000002", *(() if goes_back else ("iter_0000004", "iter_0000005"))]
    assert seen == names(tmp_path) == stay
