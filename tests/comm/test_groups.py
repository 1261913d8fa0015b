"""Groups of the grid on real ranks, and meeting the others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from megads.cluster.ranks import UNKNOWN, RankInfo
from megads.comm import groups
from megads.comm.grid import Grid
from megads.comm.groups import GROUPS, make_groups
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from tests.ranks import groups_of, run_ranks

ROOT = Path(__file__).parents[2]
# The programs below end with os._exit: about one in a hundred ordinary exits of a process that
# used gloo aborts, when a thread of it still wants the interpreter (torch 2.13).


def _groups_hold_the_right_ranks(degrees: dict[str, int]) -> None:
    groups, rank = groups_of(**degrees), dist.get_rank()
    for name, along in GROUPS.items():
        expected = groups.grid.group_of(rank, *along)
        group = getattr(groups, name)
        assert groups.ranks(name) == expected
        if len(expected) == 1:
            assert group is None
        else:
            assert tuple(dist.get_process_group_ranks(group)) == expected
        real = groups.process_group(name)
        assert real.size() == len(expected)
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=real)
        assert total.item() == sum(expected)
    assert groups.tensor_rank == groups.grid.coordinate(groups.rank)["tensor"]
    assert groups.data_seq_size == groups.data_size * groups.seq_size


@pytest.mark.dist
@pytest.mark.parametrize(
    "degrees",
    [{"tensor": 4}, {"data": 2, "tensor": 2}, {"pipe": 2, "tensor": 2}, {"data": 2, "seq": 2}, {"pipe": 2, "seq": 2}],
    ids=str,
)
def test_groups_hold_the_right_ranks(degrees):
    run_ranks(4, _groups_hold_the_right_ranks, degrees)


def _nothing_is_made_twice() -> None:
    data = groups_of(data=2)
    assert data.data is data.data_seq is data.world is dist.group.WORLD
    assert data.process_group("tensor") is data.process_group("pipe")
    both = groups_of(pipe=1, data=1, tensor=2)
    assert both.tensor is both.model is dist.group.WORLD


@pytest.mark.dist
def test_nothing_is_made_twice():
    run_ranks(2, _nothing_is_made_twice)


def _grids_follow_each_other() -> None:
    """A rank that is in none of a grid's groups must still find the groups of the next grid."""
    for degrees in ({"pipe": 4}, {"pipe": 2, "seq": 2}, {"pipe": 4}, {"data": 2, "tensor": 2}):
        groups = make_groups(Grid(**degrees), dist.get_rank())
        for name in (*GROUPS, "ends"):
            ranks = groups.ranks(name)
            if groups.rank in ranks:
                total = torch.ones(1)
                dist.all_reduce(total, group=groups.process_group(name))
                assert total.item() == len(ranks)


@pytest.mark.dist
def test_grids_follow_each_other():
    run_ranks(4, _grids_follow_each_other)


def _calls_per_rank(sizes: list[int], degrees: dict[str, int]) -> None:
    made = []
    original = dist.new_group
    dist.new_group = lambda ranks, **options: (made.append(len(ranks)), original(ranks, **options))[1]
    try:
        make_groups(Grid(**degrees), dist.get_rank())
    finally:
        dist.new_group = original
    assert sorted(made) == sizes


@pytest.mark.dist
@pytest.mark.parametrize(
    ("degrees", "sizes"),
    [
        ({"data": 2, "tensor": 2}, [1, 2, 2]),
        ({"data": 4, "tensor": 2}, [1, 2, 4]),
        ({"data": 2, "tensor": 4}, [1, 2, 4]),
    ],
    ids=str,
)
def test_a_rank_makes_only_its_own_groups(degrees, sizes):
    run_ranks(degrees["data"] * degrees["tensor"], _calls_per_rank, sizes, degrees)


def _wrong_size() -> None:
    with pytest.raises(ConfigError, match="a grid of 8 ranks does not cover the 2 ranks that started"):
        make_groups(Grid(tensor=8), dist.get_rank())


@pytest.mark.dist
def test_a_grid_of_the_wrong_size_is_refused():
    run_ranks(2, _wrong_size)


def test_one_rank_needs_no_process_group():
    groups = make_groups(Grid(), 0)
    assert all(getattr(groups, name) is None for name in GROUPS)


def test_one_rank_joins_itself_without_a_port(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import torch, torch.distributed as dist; from types import SimpleNamespace as N;"
        "from megads.comm.groups import init_distributed, make_groups; from megads.comm.grid import Grid;"
        "init_distributed('gloo', N(rank=0, world_size=1), 30.0, store=dist.HashStore(), device=torch.device('cpu'));"
        "g = make_groups(Grid(), 0).process_group('model'); assert g.size() == 1;"
        "x = torch.ones(1); dist.all_reduce(x, group=g); assert x.item() == 1; import os; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_several_ranks_meet_in_a_file(tmp_path):
    code = (
        "import sys, torch, torch.distributed as dist;"
        "from types import SimpleNamespace as N;"
        "from megads.comm.groups import init_distributed;"
        "store = dist.FileStore(sys.argv[2], 2);"
        "init_distributed('gloo', N(rank=int(sys.argv[1]), world_size=2), 30.0, store=store,"
        "device=torch.device('cpu'));"
        "x = torch.ones(1); dist.all_reduce(x); assert x.item() == 2; import os; os._exit(0)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(r), str(tmp_path / "store")], cwd=ROOT) for r in (0, 1)
    ]
    assert [process.wait(60) for process in started] == [0, 0]


def test_bindings_of_oneccl_find_the_place_of_a_rank(monkeypatch):
    """They take a group's rank and size for the host's where these two variables are missing."""
    seen = []
    row = SimpleNamespace(name="intel", backend="ccl", device=lambda local_rank: torch.device("cpu"))
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name in names:
        monkeypatch.setenv(name, "")  # so that the end of the test takes them back
    monkeypatch.setattr(groups, "vendor", lambda env: row)
    monkeypatch.setattr(groups, "meet", lambda *rest: None)
    monkeypatch.setattr(groups, "compare_devices", lambda *rest, **more: None)
    monkeypatch.setattr(groups, "find_local", lambda info, store: replace(info, local_rank=3, local_size=4))
    monkeypatch.setattr(groups, "init_distributed", lambda *rest, **more: seen.append([os.environ[n] for n in names]))
    monkeypatch.setattr(groups, "RankHosts", lambda *rest: ("n1",) * 8)
    monkeypatch.setattr(groups, "is_first_here", lambda store: False)
    monkeypatch.setattr(groups, "make_groups", lambda grid, rank, **more: groups.Groups(Grid(data=8), rank))
    _, _, made = groups.join_ranks(RunConfig(parallel={"data": 1}), RankInfo(7, 8, UNKNOWN, 0, "slurm"), {})
    assert (made.hosts[7], made.is_first_on_host) == ("n1", False)
    assert seen == [["3", "4"]]


def test_within_a_sequence_rank_its_tokens_are_whole_rows():
    every = groups.Groups(groups.Grid(seq=2, tensor=2), 3)
    alone = every.within_sequence_rank()
    assert (alone.seq, alone.seq_rank, alone.seq_size) == (None, 0, 1)
    assert (alone.tensor_rank, alone.tensor_size, alone.data_seq_size, alone.rank) == (1, 2, 2, 3)
    assert (every.seq_rank, every.seq_size) == (1, 2)
