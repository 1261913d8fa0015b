from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
import torch.distributed as dist

from megads.cluster.hosts import this_host
from megads.cluster.ranks import UNKNOWN, RankInfo
from megads.comm.rendezvous import (
    BLOCK,
    arrive,
    connect_store,
    find_local,
    listen,
    meet,
    missing_ranks,
    serve_store,
    wait_for_listener,
)
from megads.errors import LaunchError
from tests.ranks import run_ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bare(rank: int, size: int) -> RankInfo:
    return RankInfo(rank, size, UNKNOWN, 0, "RANK")


def address(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def check_places(port: int) -> None:
    info = bare(dist.get_rank(), 4)
    store = meet(info, 30, address(port))
    found = find_local(info, store, host=("a", "b", "a", "a")[info.rank])
    assert (found.rank, found.world_size, found.family) == (info.rank, 4, "RANK")
    assert (found.local_rank, found.local_size) == ((0, 3), (0, 1), (1, 3), (2, 3))[info.rank]
    # What the launcher bound cores and devices by stays.
    known = RankInfo(info.rank, 4, 7, 0, "Flux")
    assert find_local(known, dist.PrefixStore("again", store), host="a") == RankInfo(info.rank, 4, 7, 4, "Flux")
    dist.barrier()  # rank 0 holds the store


@pytest.mark.dist
def test_ranks_of_a_cyclic_and_uneven_layout_find_their_places():
    run_ranks(4, check_places, free_port())


def check_agent(port: int) -> None:
    """torchrun's agent serves the store; no rank may listen."""
    env = address(port) | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
    info = bare(dist.get_rank(), 2)
    assert find_local(info, meet(info, 30, env)).local_rank == info.rank
    # Started again, the ranks meet in the same store and not in what is left there.
    assert find_local(info, meet(info, 30, env | {"TORCHELASTIC_RESTART_COUNT": "2"})).local_size == 2


@pytest.mark.dist
def test_ranks_meet_at_torchruns_agent():
    agent = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    run_ranks(2, check_agent, agent.port)


def check_twins(port: int) -> None:
    claimed = (0, 1, 1)[dist.get_rank()]
    try:
        meet(bare(claimed, 3), 2, address(port))
    except LaunchError as error:
        told = str(error)
    else:
        told = ""
    every: list[str | None] = [None] * 3
    dist.all_gather_object(every, told)
    assert "1 of 3 ranks did not join before the timeout: 2" in str(every[0])
    assert sum(f"duplicate rank 1 of 3, on {this_host()}" in str(each) for each in every[1:]) == 1


@pytest.mark.dist
def test_two_processes_with_one_rank_are_told():
    run_ranks(3, check_twins, free_port())


def test_one_rank_alone_needs_no_address():
    info = RankInfo(0, 1, 0, 1, "single")
    assert find_local(info, meet(info, 1, {})) is info


def test_a_known_place_sends_nothing():
    info = RankInfo(3, 4, 1, 2, "SLURM")
    store = dist.HashStore()
    assert find_local(info, store) is info
    assert store.num_keys() == 0


def refused(info: RankInfo, env: dict[str, str]) -> str:
    with pytest.raises(LaunchError) as raised:
        meet(info, 0.5, env)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("by", ["127.0.0.1", "::1"])
def test_a_store_for_other_hosts_is_reached_by_either_protocol(by):
    port = free_port()
    store = serve_store("n1", port, 10)
    connect_store(by, port, 10).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(OSError, match="in use"):
        listen("n1", port)


def test_a_port_in_use_is_told_at_once_with_its_number():
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        assert refused(bare(0, 2), address(port)).startswith(f"MASTER_PORT={port} is in use on {this_host()}")


def test_rank_0_names_the_ranks_that_do_not_come():
    told = refused(bare(0, 12), address(free_port()))
    assert told.startswith(
        "11 of 12 ranks did not join before the timeout: 1, 2, 3, 4, 5, 6, 7, 8 ...; those that joined are on "
    )


def test_a_rank_that_does_not_reach_rank_0_says_where_it_looked(capfd):
    port = free_port()
    told = refused(bare(1, 2), address(port))
    assert f"rank 1 of 2 on {this_host()} does not reach rank 0 at MASTER_ADDR=127.0.0.1 MASTER_PORT={port}" in told
    assert "refused" in told
    assert "does not reach" in refused(bare(1, 2), {"MASTER_ADDR": "nohost.invalid", "MASTER_PORT": "2345"})
    # torch writes a stack of C++ frames for each attempt.
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("port", ["0", "70000", "http"])
def test_an_address_that_is_none(port):
    assert refused(bare(1, 2), {}).startswith(
        "rank 1 of 2: MASTER_ADDR and MASTER_PORT must name the rendezvous address"
    )
    assert f"MASTER_PORT={port} is not a port" in refused(bare(1, 2), {"MASTER_ADDR": "n1", "MASTER_PORT": port})


class Counting(dist.Store):
    """A store of threads that counts what is asked of it."""

    def __init__(self, kept: dist.Store) -> None:
        super().__init__()
        self.kept = kept
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name):
        if name in ("add", "set", "get", "check", "wait", "multi_get", "multi_set"):
            self.asked[name] += 1
            return getattr(self.kept, name)
        return super().__getattribute__(name)


def requests_of_ranks(size: int) -> list[Counter[str]]:
    """Return what each of ``size`` ranks, threads of one process, asks the store until it knows its place."""
    kept = dist.HashStore()
    stores = [Counting(kept) for _ in range(size)]
    found: dict[int, RankInfo] = {}

    def join(rank: int) -> None:
        arrive(bare(rank, size), stores[rank], time.monotonic() + 30)
        found[rank] = find_local(bare(rank, size), stores[rank], host="ab"[rank % 2])

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    while kept.add("arrived", 0) < size - 1:
        time.sleep(0.01)
    join(0)  # last: how often it asks while it waits depends on the time alone
    for thread in threads:
        thread.join(60)
    assert [(found[rank].local_rank, found[rank].local_size) for rank in range(size)] == [
        (rank // 2, size // 2) for rank in range(size)
    ]
    return [store.asked for store in stores]


def test_more_ranks_ask_the_store_no_more_often():
    few, many = requests_of_ranks(2), requests_of_ranks(64)
    assert many[0] == few[0]
    assert all(each == few[1] for each in many[1:])
    assert max(few[0].total(), few[1].total()) < 10


def test_missing_ranks_are_found_in_few_questions():
    size = 3 * BLOCK + 7
    store, gone = Counting(dist.HashStore()), {5, BLOCK, size - 1}
    for rank in range(size):
        if rank not in gone:
            store.kept.set(f"host/{rank}", "a")
    assert missing_ranks(store, "host", size) == sorted(gone)
    assert store.asked.total() < 80


def test_a_knock_that_reached_itself_is_no_listener(monkeypatch):
    def knock(address, timeout):
        own = socket.socket()
        own.bind(("127.0.0.1", 0))
        own.connect(own.getsockname())
        return own

    monkeypatch.setattr(socket, "create_connection", knock)
    with pytest.raises(ConnectionRefusedError):
        wait_for_listener("127.0.0.1", 29500, time.monotonic())
