"""How fast collectives are: plausible rows, and a slow pair is named."""

import pytest
import torch.distributed as dist

from megads.doctor.ranks import collectives, worker
from megads.doctor.ranks.collectives import measure, measure_pairs
from tests.doctor.ranks.test_collectives import _nothing, _patched, _team
from tests.ranks import run_ranks


def _a_slow_pair_is_named(names):
    """Of the neighbours 0-1-2-3 the pair 1, 2 is slow."""
    import time

    team = _team()
    right = collectives.exchange

    def slow(team, x, out, other):
        if {team.me, other} == {1, 2}:
            time.sleep(0.3)
        right(team, x, out, other)

    with _patched(collectives, "exchange", slow):
        rows = measure_pairs(team, _nothing, _nothing)
    gathered = [None] * 4
    dist.all_gather_object(gathered, {"rows": [["all_reduce", 1024, 1e-3]], "pairs": rows})
    found = worker._host_speed(gathered, ["h"] * 4)
    assert found.status == "failed"
    assert found.text.startswith("far below the median")
    assert names in found.text
    assert found.text.count("ranks") == 1


def _measures_are_plausible():
    rows = measure(_team(), _nothing, _nothing, ["all_reduce", "broadcast"])
    if dist.get_rank():
        assert rows == []
    else:
        assert [(row[0], row[1]) for row in rows] == [
            (name, size) for name in ("all_reduce", "broadcast") for size in collectives.SIZES["cpu"]
        ]
        assert all(0 < seconds < 10 for _, _, seconds in rows)


@pytest.mark.dist
def test_a_slow_pair_of_ranks_is_named():
    run_ranks(4, _a_slow_pair_is_named, "ranks 1 and 2 (host h) (")


@pytest.mark.dist
def test_rows_of_two_ranks():
    run_ranks(2, _measures_are_plausible)
