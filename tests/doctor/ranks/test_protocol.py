"""The protocol on real ranks: who does not come, hangs or fails is named, and nobody waits forever."""

import random
import socket
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from megads.cluster.ranks import TOKEN, RankInfo
from megads.doctor.ranks import protocol
from megads.doctor.ranks.protocol import Stage, StageProtocol
from megads.doctor.ranks.rendezvous import meet
from megads.errors import LaunchError
from megads.monitor.check_stages import Verdict
from tests.ranks import run_ranks

HOSTS = ["a", "b", "b", "b"]


def _port():
    for _ in range(100):
        port = random.randint(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port")


def _conduct(port, limit_s=20.0, **more):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    info = RankInfo(rank, world_size, rank, world_size, "test")
    meeting = meet(info, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, limit_s)
    return StageProtocol(meeting.store, rank, world_size, limit_s, list(HOSTS[:world_size]), **more)


def _go(mine, stages):
    """Return the findings by stage on rank 0, nothing on the others."""
    if mine.rank:
        mine.follow(stages)
        return {}
    findings = {each.stage: each.verdict for each in mine.lead(stages)}
    # The store goes with this object; the others still read the last word from it.
    dist.barrier()
    return findings


def _fine(reports):
    return Verdict("ok", str(reports))


def _all_is_told(port):
    mine = _conduct(port)
    heard = []
    stages = [
        Stage("first", lambda: 10 * mine.rank, _fine, tell=lambda reports: [r + 1 for r in reports], hear=heard.append),
        Stage("second", lambda: heard[0], lambda reports: Verdict("failed", str(reports))),
        Stage("third", lambda: 0, _fine, needs=("second",)),
    ]
    found = _go(mine, stages)
    assert heard == [10 * mine.rank + 1]
    if mine.rank == 0:
        assert (found["first"].text, found["second"].text) == ("[0, 10, 20, 30]", "[1, 11, 21, 31]")
        assert (found["third"].status, found["third"].text) == ("skipped", "second failed")
    else:
        dist.barrier()
    assert abs(mine.lag_s) < 5 or mine.rank == 0


def _one_never_comes(port):
    mine = _conduct(port, limit_s=1.0)
    stages = [Stage("store", lambda: 1, _fine), Stage("later", lambda: 1, _fine)]
    if mine.rank == 1:
        dist.barrier()
        return
    found = _go(mine, stages)
    if mine.rank == 0:
        assert found["store"].text == "no answer within 1 s from rank 1 (host b)"
        assert (found["later"].status, found["later"].text) == ("skipped", "after store failed")


def _one_hangs(port):
    mine = _conduct(port, limit_s=1.0)

    def work():
        mine.progress("all_reduce fp32")
        if mine.rank == 2:
            time.sleep(4)
        mine.progress("all_gather fp32")
        time.sleep(3)

    stages = [Stage("host", work, _fine, meets=True), Stage("later", lambda: 1, _fine)]
    found = _go(mine, stages)
    if mine.rank == 0:
        assert found["host"].text == "not finished in 1 s, slowest in all_reduce fp32: rank 2 (host b)"
        assert "rank 2 is at" in found["host"].details[0]
        assert "test_protocol.py" in found["host"].details[0]
        assert found["host"].details[1] == "waiting in all_gather fp32: rank 0 (host a), ranks 1, 3 (host b)"
        assert found["later"].status == "skipped"
    else:
        dist.barrier()


def _one_fails(port, meets):
    mine = _conduct(port)

    def work():
        if mine.rank == 3:
            mine.progress("broadcast int64")
            raise ValueError("no such device\nmore")
        if meets:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1")

    found = _go(mine, [Stage("host", work, _fine, meets=meets), Stage("later", lambda: 1, _fine)])
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
        until = time.monotonic() + 60
        while mine.rank == 1 and not (folder / "told").exists() and time.monotonic() < until:
            time.sleep(0.01)

    mine = _conduct(port, 60.0, running=lambda line: lines.append(line) or (folder / "told").touch())
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
@pytest.mark.parametrize("check", [_all_is_told, _one_hangs])
def test_four_ranks(check):
    run_ranks(4, check, _port())


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
    told = []
    stage = Stage(
        "store", lambda: {"host": "a"}, lambda reports: Verdict("ok", str(len(reports))),
        tell=lambda reports: [0] * len(reports), hear=told.append,
    )  # fmt: skip
    (found,) = mine.lead([stage])
    assert found.verdict.text == str(world_size)
    assert told == [0]
    assert counted.asked < 200


def test_nobody_at_the_address_is_told_with_it():
    info = RankInfo(1, 2, 1, 2, "test")
    port = _port()
    with pytest.raises(LaunchError, match=rf"no answer at MASTER_ADDR=localhost \(127.0.0.1\) port {port}"):
        meet(info, {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}, 1.0)


def test_an_address_that_does_not_resolve_is_told():
    info = RankInfo(1, 2, 1, 2, "test")
    with pytest.raises(LaunchError, match=r"MASTER_ADDR=no-such-host\.invalid does not resolve on this host"):
        meet(info, {"MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "1"}, 1.0)


def test_the_store_of_one_host_is_on_loopback_and_its_keys_begin_with_the_secret():
    port = _port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), TOKEN: "of this launch"}
    lead = meet(RankInfo(0, 2, 0, 2, "test"), env, 5.0)
    peer, stranger = (
        meet(RankInfo(1, 2, 1, 2, "test"), given, 5.0) for given in (env, {**env, TOKEN: "of another launch"})
    )
    lead.store.set("go", "run")
    lead.groups.set("made", "1")
    assert (peer.store.check(["go"]), peer.groups.check(["made"])) == (True, True)
    assert (stranger.store.check(["go"]), stranger.groups.check(["made"])) == (False, False)
    # Every listener on this port: local address, state 0A.
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    assert [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"] == [f"0100007F:{port:04X}"]
