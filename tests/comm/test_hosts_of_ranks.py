"""Names of hosts of many ranks: who knows them from the start, who asks, and how often."""

from __future__ import annotations

import torch.distributed as dist

from megads.cluster.hosts import this_host
from megads.comm import hosts_of_ranks
from megads.comm.hosts_of_ranks import RankHosts, is_first_here, known_hosts


def store_of(size: int) -> dist.Store:
    store = dist.HashStore()
    for rank in range(size):
        store.set(f"host/{rank}", f"n{rank // 4}")
    return store


def test_few_ranks_know_all_names_at_once():
    hosts = RankHosts(store_of(8), 3, 8)
    assert (len(hosts), hosts[7], hosts[-1], hosts[4:6]) == (8, "n1", "n1", ["n1", "n1"])
    assert hosts[3] == this_host()
    assert len(known_hosts(hosts)) == 8
    assert list(hosts) == ["n0", "n0", "n0", this_host(), "n1", "n1", "n1", "n1"]


def test_of_many_ranks_only_the_first_knows_all_and_the_others_ask_for_what_they_need(monkeypatch):
    monkeypatch.setattr(hosts_of_ranks, "KNOWN_TO_ALL", 4)
    store = store_of(8)
    assert len(known_hosts(RankHosts(store, 0, 8))) == 8
    hosts = RankHosts(store, 5, 8)
    assert known_hosts(hosts) == {5: this_host()}
    assert hosts[6] == "n1"
    assert set(known_hosts(hosts)) == {5, 6}
    assert len(list(hosts)) == 8
    assert len(known_hosts(hosts)) == 8


def test_a_rank_by_itself_and_a_plain_list():
    assert list(RankHosts(None, 0, 1)) == [this_host()]
    assert known_hosts(["a", "b"]) == {0: "a", 1: "b"}
    assert known_hosts(()) == {}


def test_one_rank_of_a_host_is_the_first():
    store = dist.HashStore()
    assert [is_first_here(store) for _ in range(3)] == [True, False, False]
