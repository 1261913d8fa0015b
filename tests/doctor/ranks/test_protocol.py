"""The protocol on real ranks: who does not come, hangs or fails is named, and nobody waits forever."""

import socket
import time

import pytest
import torch.distributed as dist

from megads.cluster.ranks import RankInfo
from megads.doctor.ranks import protocol
from megads.doctor.ranks.protocol import Stage, StageProtocol, meet
from megads.monitor.check_stages import Verdict
from tests.ranks import run_ranks

HOSTS = ["a", "b", "b", "b"]


def _port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _protocol(port, limit_s=20.0, **more):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    info = RankInfo(rank, world_size, rank, world_size, "test")
    meeting = meet(info, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, limit_s)
    return StageProtocol(meeting.store, rank, world_size, limit_s, list(HOSTS[:world_size]), **more)


def _wait_for(path):
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def _go(mine, stages, then=lambda: None):
    """Return the findings by stage on rank 0, which calls ``then`` with them in hand; nothing on the others."""
    if mine.rank:
        mine.follow(stages)
        return {}
    findings = {each.stage: each.verdict for each in mine.lead(stages)}
    then()
    # The store goes with this object; the others still read the last word from it.
    dist.barrier()
    return findings


def _fine(reports):
    return Verdict("ok", str(reports))


def _every_rank_gets_its_answer(port):
    mine = _protocol(port)
    received = []
    stages = [
        Stage(
            "first",
            lambda: 10 * mine.rank,
            _fine,
            answers=lambda reports: [r + 1 for r in reports],
            receive=received.append,
        ),
        Stage("second", lambda: received[0], lambda reports: Verdict("failed", str(reports))),
        Stage("third", lambda: 0, _fine, needs=("second",)),
    ]
    found = _go(mine, stages)
    assert received == [10 * mine.rank + 1]
    if mine.rank == 0:
        assert (found["first"].text, found["second"].text) == ("[0, 10, 20, 30]", "[1, 11, 21, 31]")
        assert (found["third"].status, found["third"].text) == ("skipped", "second failed")
    else:
        dist.barrier()
    assert abs(mine.lag_s) < 5 or mine.rank == 0


def _one_never_comes(port):
    mine = _protocol(port, limit_s=2.0)
    stages = [Stage("store", lambda: 1, _fine), Stage("later", lambda: 1, _fine)]
    if mine.rank == 1:
        dist.barrier()
        return
    found = _go(mine, stages)
    if mine.rank == 0:
        assert found["store"].text == "no answer within 2 s from rank 1 (host b)"
        assert (found["later"].status, found["later"].text) == ("skipped", "after store failed")


def _one_hangs(port, folder):
    mine = _protocol(port, limit_s=3.0)

    def work():
        mine.progress("all_reduce fp32")
        if mine.rank == 2:
            _wait_for(folder / "told")
        mine.progress("all_gather fp32")
        _wait_for(folder / "told")

    stages = [Stage("host", work, _fine, is_collective=True), Stage("later", lambda: 1, _fine)]
    found = _go(mine, stages, (folder / "told").touch)
    if mine.rank == 0:
        assert found["host"].text == "not finished in 3 s, slowest in all_reduce fp32: rank 2 (host b)"
        assert "rank 2 is at" in found["host"].details[0]
        assert "test_protocol.py" in found["host"].details[0]
        assert found["host"].details[1] == "waiting in all_gather fp32: rank 0 (host a), ranks 1, 3 (host b)"
        assert found["later"].status == "skipped"
    else:
        dist.barrier()


def _one_fails(port, meets):
    mine = _protocol(port)

    def work():
        if mine.rank == 3:
            mine.progress("broadcast int64")
            raise ValueError("no such device\nmore")
        if meets:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1")

    found = _go(mine, [Stage("host", work, _fine, is_collective=meets), Stage("later", lambda: 1, _fine)])
    if mine.rank == 0:
        assert found["host"].text == "rank 3 (host b): ValueError in broadcast int64: no such device"
        assert "in work" in found["host"].data["trace"]
        assert found["later"].status == ("skipped" if meets else "ok")
        if meets:
            assert "RuntimeError: Connection closed by peer" in found["host"].details[0]
    else:
        dist.barrier()


def _slow_stage_tells_for_whom_it_waits(port, folder):
    lines = []

    def work():
        if mine.rank == 1:
            _wait_for(folder / "told")

    mine = _protocol(port, 60.0, report_slow=lambda line: lines.append(line) or (folder / "told").touch())
    protocol.RUNNING_AFTER_S = 0.2
    found = _go(mine, [Stage("disk", work, _fine)])
    protocol.RUNNING_AFTER_S = 10.0
    if mine.rank == 0:
        assert found["disk"].status == "ok"
        assert lines[0].startswith("disk           running ")
        assert lines[0].endswith("waiting for rank 1 (host b)\n")
    else:
        dist.barrier()


@pytest.mark.dist
def test_every_rank_gets_its_answer():
    run_ranks(4, _every_rank_gets_its_answer, _port())


@pytest.mark.dist
def test_a_rank_that_hangs_is_named_with_its_place(tmp_path):
    run_ranks(4, _one_hangs, _port(), tmp_path)


@pytest.mark.dist
@pytest.mark.parametrize("meets", [True, False], ids=["in a collective", "alone"])
def test_a_rank_that_fails_is_told_before_those_that_lost_it(meets):
    run_ranks(4, _one_fails, _port(), meets)


@pytest.mark.dist
def test_a_rank_that_never_comes_is_named():
    run_ranks(2, _one_never_comes, _port())


@pytest.mark.dist
def test_a_slow_stage_tells_for_whom_it_waits(tmp_path):
    run_ranks(2, _slow_stage_tells_for_whom_it_waits, _port(), tmp_path)


class _Counted:
    """A store that counts the questions it is asked."""

    def __init__(self, store):
        self._store, self.asked = store, 0

    def __getattr__(self, name):
        self.asked += 1
        return getattr(self._store, name)


def test_ten_thousand_ranks_report_in_a_few_questions():
    world_size = 10_000
    store = dist.HashStore()
    for rank in range(1, world_size):
        store.set(f"report/0/{rank}", '{"ok": {"host": "a"}}')
    store.add("count/0", world_size - 1)
    store.add("bye", world_size - 1)
    counted = _Counted(store)
    mine = StageProtocol(counted, 0, world_size, 20.0)
    received = []
    stage = Stage(
        "store", lambda: {"host": "a"}, lambda reports: Verdict("ok", str(len(reports))),
        answers=lambda reports: [0] * len(reports), receive=received.append,
    )  # fmt: skip
    (found,) = mine.lead([stage])
    assert found.verdict.text == str(world_size)
    assert received == [0]
    assert counted.asked < 200
