"""A rank that gives no sign any more is named, with its host."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from megads.comm import presence
from megads.comm.presence import LostRanks, Presence
from megads.comm.rendezvous import store_listens

HOSTS = ("a", "b", "c")


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr("megads.comm.presence.BEAT_S", 0.01)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect():
        return dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False, timeout=timedelta(seconds=10))

    found = [Presence(connect, rank, HOSTS) for rank in range(3)]
    for each in found:
        each.start()
    for rank in range(3):
        while server.add(f"presence/{rank}", 0) == 0:
            time.sleep(0.01)

    def beaten(seconds):
        """Pass the time for which a rank may be silent: let each that lives give a sign, however busy the host is."""
        if seconds != presence.SILENT_S:
            time.sleep(seconds)
        else:
            living = [rank for rank in range(3) if not found[rank]._ended.is_set()]
            before = {rank: server.add(f"presence/{rank}", 0) for rank in living}
            while any(server.add(f"presence/{rank}", 0) < before[rank] + 2 for rank in living):
                time.sleep(0.01)

    monkeypatch.setattr(presence, "time", SimpleNamespace(sleep=beaten, monotonic=time.monotonic))
    yield found
    for each in found:
        each.stop()


def test_the_silent_rank_is_named(ranks):
    assert ranks[0].error() is None
    ranks[1].stop()
    assert ranks[0].gone() == ranks[2].gone() == [1]
    error = ranks[0].error()
    assert isinstance(error, LostRanks)
    assert str(error) == "rank 1 on b is gone (killed, failed, or the host is down); start it again"
    ranks[2].stop()
    assert str(ranks[0].error()).startswith("rank 1 on b, rank 2 on c are gone (")


def test_all_ranks_are_asked_to_end_or_one_was_killed(ranks, monkeypatch):
    monkeypatch.setattr("megads.comm.presence.STOPPED_S", 0.3)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(Presence.all_stop, ranks[:2])) == [False, False]
    monkeypatch.setattr("megads.comm.presence.STOPPED_S", 60.0)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(Presence.all_stop, ranks)) == [True, True, True]


def test_a_rank_that_reports_its_own_end_is_excused(ranks):
    assert not any(each.is_excused for each in ranks)
    ranks[2].excuse()
    while not all(each.is_excused for each in ranks):
        time.sleep(0.01)


def test_rank_0_ends_when_the_others_have_let_go_of_its_store(ranks):
    ranks[0].excuse()
    for each in ranks[1:]:
        each._thread.join(60)
        assert not each._thread.is_alive()
        assert each.is_excused


def test_the_store_is_gone_with_rank_0():
    def connect():
        raise RuntimeError("refused")

    assert Presence(connect, 2, HOSTS).gone() == [0]
    assert Presence(connect, 0, HOSTS).gone() == []
    assert not Presence(connect, 2, HOSTS).all_stop()
    assert not Presence(connect, 2, HOSTS, lambda: False).all_stop()


def test_torch_is_not_asked_where_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        assert store_listens(env, 1)
    assert not store_listens(env, 1)
    asked: list[str] = []
    presence = Presence(lambda: asked.append("store"), 1, HOSTS, lambda: store_listens(env, 1))
    assert str(presence.error()).startswith("rank 0 on a is gone")
    assert not asked
