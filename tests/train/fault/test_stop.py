"""All ranks leave at the same step, whoever was asked and whatever their clocks say."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megads.checkpoint.save import WRITING
from megads.train.fault.stop import ECHO_S, Deadline, StopRequest
from tests.ranks import groups_of, run_ranks


def request(folder: Path, rank_of_clock: dict[int, float] | None = None, **more: float) -> StopRequest:
    """Return this rank's request; the allocation ends in an hour, by the clock of its rank fast by some seconds."""
    groups = groups_of(data=2)
    fast = (rank_of_clock or {}).get(groups.rank, 0.0)
    deadline = Deadline(time.time() + 3600, 1.0, now=lambda: time.time() + fast)
    return StopRequest(folder, groups, torch.device("cpu"), in_place=False, deadline=deadline, **more)


def _signal_to_one(folder: Path, number: int) -> None:
    stop = request(folder)
    assert stop.agreed() == ""
    if stop.groups.rank == 1:
        os.kill(os.getpid(), number)
    assert stop.agreed() == "asked to stop"


def _file(folder: Path) -> None:
    stop = request(folder)
    assert stop.agreed() == ""
    if stop.groups.rank == 0:
        (folder / "stop").touch()
    assert stop.agreed() == "asked to stop"


def _clock(folder: Path, rank: int, stops: bool) -> None:
    why = request(folder, {rank: 3595.0}).agreed()
    assert why.startswith("the allocation ends at ") == stops
    assert bool(why) == stops


def _duration(folder: Path) -> None:
    stop = request(folder, exit_duration_min=0.5)
    stop.exit_at -= 29.0 if stop.groups.rank == 0 else 100.0
    assert stop.agreed() == ""
    if stop.groups.rank == 0:
        stop.exit_at -= 1.0
    assert stop.agreed() == "EXIT_DURATION_IN_MINS=0.5"


def _saves(folder: Path) -> None:
    """Each rank tells how far its save is, in the same message, and all hear of the one that is least far."""
    stop = request(folder)
    assert (stop.agreed(), stop.saves) == ("", 0)
    sent, all_reduce = [], dist.all_reduce

    def count(tensor: torch.Tensor, **how: object) -> object:
        sent.append(tensor.numel())
        return all_reduce(tensor, **how)

    dist.all_reduce = count
    try:
        stop.deadline.begins_to_write()
        for told in ((0, 1), (2, 0), (0, 0)):
            stop.saving = lambda told=told: told[stop.groups.rank]
            assert (stop.agreed(step=False), stop.saves) == ("", max(told))
    finally:
        dist.all_reduce = all_reduce
    assert sent == [2, 2, 2]
    seen = stop.deadline.written_s
    assert 0.0 < seen < 60.0
    stop.saving = lambda: WRITING
    stop.agreed()
    assert stop.deadline.written_s > seen


@pytest.mark.dist
@pytest.mark.parametrize("check", [_duration, _saves])
def test_what_else_ranks_agree_on(tmp_path, check):
    run_ranks(2, check, tmp_path)


@pytest.mark.dist
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_one_rank_stops_all(tmp_path, number):
    run_ranks(2, _signal_to_one, tmp_path, number)


@pytest.mark.dist
def test_the_control_file_stops_all(tmp_path):
    run_ranks(2, _file, tmp_path)


@pytest.mark.dist
@pytest.mark.parametrize(("rank", "stops"), [(0, True), (1, False)])
def test_the_clock_of_rank_0_decides(tmp_path, rank, stops):
    run_ranks(2, _clock, tmp_path, rank, stops)


def _interrupt(folder: Path) -> None:
    groups = groups_of(data=2)
    stop = StopRequest(folder, groups, torch.device("cpu"), in_place=True)
    for _ in range(2):  # MPICH's, and the same from the guard
        signal.raise_signal(signal.SIGINT)
    assert stop.agreed() == "asked to stop"
    stop.interrupted_at -= 2 * ECHO_S
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.dist
def test_a_ctrl_c_that_comes_twice_is_one_and_another_one_ends_the_rank(tmp_path):
    run_ranks(2, _interrupt, tmp_path)
