"""The stages of the check, and what they make of reports of several hosts."""

from pathlib import Path

import pytest
import torch.distributed as dist

from megads.cluster.ranks import RankInfo
from megads.doctor.ranks import collectives, worker
from megads.doctor.ranks.checks import Rank, check_pair, claim_device, time_pairs
from megads.doctor.ranks.host_groups import places
from megads.doctor.ranks.protocol import Meeting, StageProtocol
from tests.doctor.ranks.test_checks import _info
from tests.doctor.ranks.test_collectives import _patched
from tests.e2e.test_doctor import STAGES
from tests.ranks import run_ranks


def _a_slow_pair_of_hosts_is_named():
    """Four hosts of one rank; what hosts b and c do together is slow."""
    import time

    hosts, me = ["a", "b", "c", "d"], dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    rank = Rank(_info(), {"MEGADS_DEVICE": "cpu"}, hosts[me], Meeting(store, store, ""), 30.0, None)
    rank.place = places(hosts)[me]
    claim_device(rank)
    for number in range(2):
        assert check_pair(rank, number) == {"wrong": [], "lacks": []}
    right = collectives._call

    def slow(name, team, count):
        call = right(name, team, count)
        return (lambda: (time.sleep(0.2), call())) if team.ranks == (1, 2) else call

    with _patched(collectives, "_call", slow):
        rows = time_pairs(rank)
    gathered = [None] * 4
    dist.all_gather_object(gathered, rows)
    found = worker._pair_speed(gathered, hosts)
    assert found.status == "failed"
    assert "hosts b and c (" in found.text
    assert "hosts a and b" not in found.text


@pytest.mark.dist
def test_a_slow_pair_of_four_hosts():
    run_ranks(4, _a_slow_pair_of_hosts_is_named)


def test_stages_need_only_earlier_ones_and_have_the_names_of_the_page():
    info = RankInfo(0, 1, 0, 1, "test")
    rank = Rank(info, {}, "a", Meeting(None, None, ""), 30.0, Path("x"))  # type: ignore[arg-type]
    found = worker.stages_of(rank, StageProtocol(None, 0, 1, 30.0), ["a"])  # type: ignore[arg-type]
    names = [stage.name for stage in found]
    assert set(names) <= set(STAGES)
    for number, stage in enumerate(found):
        assert set(stage.needs) <= set(names[:number])
