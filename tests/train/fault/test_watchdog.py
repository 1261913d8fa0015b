"""A hang: who is reported, by whom, and what is none."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from megads.comm.groups import MARGIN_S, group_timeout_s
from megads.comm.rendezvous import connect_again
from megads.monitor.run_state.outcome import Heartbeat, read_heartbeat, read_outcome, write_heartbeat
from megads.train.fault import hang_report as hang_module
from megads.train.fault import watchdog
from megads.train.fault.hang_report import Board
from megads.train.fault.watchdog import END, Watchdog
from tests.train.fault.test_hang_report import at

HOST = socket.gethostname()


def one(folder: Path, **more) -> Watchdog:
    return Watchdog(0, 2, folder, 10.0, Board(lambda: pytest.fail("no hang"), folder), **more)


def test_how_long_a_phase_may_take(tmp_path):
    watch = one(tmp_path)
    assert watch.allowed_s() == 20.0
    watch.enter("step")
    assert watch.allowed_s() == 20.0
    watch.enter("step")
    assert watch.allowed_s() == 10.0
    watch.longest["step"] = 100.0
    assert watch.allowed_s() == 300.0


def test_a_save_may_take_as_long_as_one_that_was_written_in_the_background(tmp_path):
    watch = one(tmp_path, save_s=7.0)
    watch.saved(0.0)
    assert watch.save_s == 7.0  # of an earlier start
    watch.enter("save")
    assert watch.allowed_s() == 20.0  # the first of its kind
    watch.enter("step")
    watch.saved(90.0)
    watch.enter("save")
    assert watch.allowed_s() == 270.0
    assert watch.save_s == 90.0


def test_the_heartbeat_has_the_seconds_of_every_phase(tmp_path, monkeypatch):
    """The report of a campaign adds them up; a start that is killed has them up to its last heartbeat."""
    now = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    watch = one(tmp_path, _begun=now[0])
    for phase, took in (("step", 5.0), ("save", 2.0), ("step", 1.0), ("step", 3.5), ("save", 0.25)):
        now[0] += took  # of the phase before
        watch.enter(phase)
    watch.come_further()
    now[0] += 0.5
    watch.beat()
    beat = read_heartbeat(tmp_path)
    assert beat is not None
    assert beat.spent == {"set-up": 5.0, "step": 2.0 + 3.5 + 0.25, "save": 1.0 + 0.5}
    assert sum(beat.spent.values()) == now[0] - 100.0


def test_torch_waits_longer_than_the_watchdog():
    assert group_timeout_s(600.0) >= 2 * 600.0 + MARGIN_S
    spent = watchdog.COLLECT_S * 2 + watchdog.SPOKESMAN_S + 2.0 + 5.0 + watchdog.TICK_S + watchdog.LONGEST_ASK_S
    assert spent < MARGIN_S


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_here(seconds: float) -> None:
    time.sleep(seconds)


def _rank(rank: int, size: int, folder: Path, port: int, timeout_s: float, slow: int = -1) -> None:
    """Be a rank that waits for the others, until its watchdog ends it."""
    sys.stderr = open(folder / f"err-{rank}", "w", buffering=1)  # noqa: SIM115
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if rank == 0:
        kept = dist.TCPStore("127.0.0.1", port, size, True, timedelta(seconds=5), wait_for_workers=False)
    connect_again(env, rank).set(f"host/{rank}", HOST)
    board = Board(lambda: connect_again(env, rank), folder / "log")
    (folder / f"here-{rank}").touch()
    while not all((folder / f"here-{each}").exists() for each in range(size)):
        time.sleep(0.01)  # what one is late is not to be taken for a hang
    watch = Watchdog(rank, size, folder, timeout_s, board, iteration=3)
    watch.start()
    watch.enter("step")
    if rank == slow:
        watch.longest["step"] = 30.0  # it may take longer than the others
    watch.enter("step")
    (folder / f"ready-{rank}").touch()
    _wait_here(300)
    del kept


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Starts ranks and returns their processes; nothing of them is left."""
    monkeypatch.setattr(hang_module, "ANSWER_S", 1.0)
    for name, value in {"TICK_S": 0.1, "PAUSE_S": 0.3, "COLLECT_S": 1.5, "SPOKESMAN_S": 1.0, "ASK_S": 0.3}.items():
        monkeypatch.setattr(watchdog, name, value)
    started = []

    def start(size: int, timeout_s: float, slow: int = -1) -> list[multiprocessing.process.BaseProcess]:
        port, context = _port(), multiprocessing.get_context("fork")
        for rank in range(size):
            process = context.Process(target=_rank, args=(rank, size, tmp_path, port, timeout_s, slow), daemon=True)
            process.start()
            started.append(process)
        end = time.monotonic() + 100
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(size)):
            assert time.monotonic() < end
            time.sleep(0.02)
        while not (tmp_path / "heartbeat.json").exists():  # a rank 0 that is stopped before it has told no host
            assert time.monotonic() < end
            time.sleep(0.02)
        return started

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.dist
@pytest.mark.parametrize("silent", [2, 0])
def test_ranks_report_one_that_is_stopped_and_end(ranks, tmp_path, silent):
    processes = ranks(3, 1.5)
    os.kill(processes[silent].pid, signal.SIGSTOP)
    others = [process for rank, process in enumerate(processes) if rank != silent]
    for process in others:
        process.join(100)
        assert process.exitcode == 1
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert (outcome.kind, outcome.rank, outcome.iteration) == ("hang", silent, 3)
    # The store of rank 0 is as silent as rank 0, but its heartbeat says where it was.
    assert outcome.host == HOST
    assert f"rank {silent} host {HOST} did not answer" in outcome.message
    told = "".join((tmp_path / f"err-{rank}").read_text() for rank in range(3))
    assert told.count("megads: no progress for") == 1
    assert "in _wait_here" in told
    assert f"ranks {'0-1' if silent else '1-2'}\n" in told


@pytest.mark.dist
def test_a_rank_whose_own_time_is_not_over_answers_all_the_same(ranks, tmp_path):
    for process in ranks(2, 1.0, slow=1):
        process.join(100)
        assert process.exitcode == 1
    assert read_outcome(tmp_path).message.endswith("all ranks are in the same place")


def test_a_validation_that_goes_on_is_no_hang(tmp_path):
    watch = one(tmp_path)
    watch.enter("validation")
    since, watch._ran_s = watch._since, 19.0
    watch.come_further()
    assert (watch.phase, watch._ran_s, watch._since) == ("validation", 0.0, since)


@pytest.mark.dist
def test_a_process_that_was_stopped_itself_wakes_up_without_an_alarm(ranks, tmp_path):
    (process, _) = ranks(2, 1.5)
    other = multiprocessing.active_children()[-1]
    for each in (process, other):
        os.kill(each.pid, signal.SIGSTOP)
    time.sleep(2.0)
    for each in (process, other):
        os.kill(each.pid, signal.SIGCONT)
    time.sleep(0.4)
    assert process.is_alive()
    assert read_outcome(tmp_path) is None
    process.join(100)
    assert read_outcome(tmp_path).kind == "hang"


def test_rank_0_leaves_a_heartbeat_and_one_rank_alone_is_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)
    ended = []
    watch = Watchdog(0, 1, tmp_path, 0.01, Board(lambda: pytest.fail("no hang"), tmp_path), 2, end=ended.append)
    watch.start()
    watch.iteration = 5
    watch.enter("step")
    end = time.monotonic() + 100
    while not (beat := read_heartbeat(tmp_path)) or beat.phase != "step":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert (beat.iteration, beat.attempt, beat.pid, beat.host) == (5, 2, os.getpid(), HOST)
    assert ended == []
    watch.enter(END)


@pytest.mark.parametrize("hosts", [(), ("n0", "n1")])
def test_a_silent_rank_0_is_named_with_its_host_though_its_store_is_silent_too(tmp_path, capfd, hosts):
    def no_store() -> object:
        raise RuntimeError("no answer")

    write_heartbeat(tmp_path, Heartbeat(7, "step", 0.0, 0.0, 1, "n0"))
    watch = Watchdog(1, 2, tmp_path, 10.0, Board(no_store, tmp_path), hosts=hosts)
    watch._report(at(1, "n1"))
    assert "rank 0 host n0 did not answer" in capfd.readouterr().err
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert (outcome.kind, outcome.rank, outcome.host) == ("hang", 0, "n0")
