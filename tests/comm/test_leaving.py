"""Ranks leave each other together; a rank that does not come holds nobody longer than the limit."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megads.comm.leaving import disconnect

RANKS = 4


def _rank(rank: int, folder: Path, act: Callable[[int, Path], str], answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
    dist.all_reduce(torch.ones(1))
    told = act(rank, folder)
    answers.send((rank, told, dist.is_initialized()))
    os._exit(7)


def _run(folder: Path, act: Callable[[int, Path], str]) -> dict[int, tuple[str, bool]]:
    """Return what each rank of a world of its own says in the end, and whether it still has groups."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    ranks = [context.Process(target=_rank, args=(rank, folder, act, theirs)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    theirs.close()
    found = {}
    try:
        while True:
            number, told, has_groups = mine.recv()
            found[number] = (told, has_groups)
    except EOFError:  # every rank has ended
        pass
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 7
    return found


def _all_leave(rank: int, folder: Path) -> str:
    dist.new_group([0, 1])  # groups besides the world are destroyed too
    return disconnect(limit_s=60)


def _one_is_late(rank: int, folder: Path) -> str:
    time.sleep(0.3 if rank == 2 else 0.0)
    return disconnect(limit_s=60)


def _one_hangs(rank: int, folder: Path) -> str:
    if rank == 2:
        while len(list(folder.glob("left-*"))) < RANKS - 1:
            time.sleep(0.05)
        return "hung"
    told = disconnect(limit_s=0.3)
    (folder / f"left-{rank}").touch()
    return told


def _one_is_gone(rank: int, folder: Path) -> str:
    return "gone" if rank == 2 else disconnect(limit_s=60)


@pytest.mark.dist
@pytest.mark.parametrize("act", [_all_leave, _one_is_late])
def test_all_leave_together(tmp_path, act):
    assert _run(tmp_path, act) == dict.fromkeys(range(RANKS), ("", False))


@pytest.mark.dist
def test_a_rank_that_hangs_holds_nobody(tmp_path):
    found = _run(tmp_path, _one_hangs)
    assert {found[rank][0] for rank in (0, 1, 3)} == {"the other ranks did not end their communication in 0.3 s"}


@pytest.mark.dist
def test_a_rank_that_is_gone_is_said_to_be(tmp_path):
    found = _run(tmp_path, _one_is_gone)
    assert all(found[rank][0] for rank in (0, 1, 3)), found


def test_without_groups_there_is_nothing_to_leave():
    assert not dist.is_initialized()
    assert disconnect() == ""
