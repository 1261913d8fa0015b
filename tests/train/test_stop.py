"""All ranks leave at the same step, whoever was asked and whatever their clocks say."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from megads.train.deadline import Deadline
from megads.train.stop import StopRequest
from tests.ranks import groups_of, run_ranks


def request(folder: Path, rank_of_clock: dict[int, float] | None = None) -> StopRequest:
    """Return this rank's request; the allocation ends in an hour, by the clock of its rank fast by some seconds."""
    groups = groups_of(data=2)
    fast = (rank_of_clock or {}).get(groups.rank, 0.0)
    deadline = Deadline(time.time() + 3600, 1.0, now=lambda: time.time() + fast)
    return StopRequest(folder, groups, torch.device("cpu"), in_place=False, deadline=deadline)


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
