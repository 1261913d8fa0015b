import pytest

from megads.doctor.ranks.host_groups import host_name, neighbours, places


@pytest.mark.parametrize("count", range(2, 12))
def test_everybody_meets_both_neighbours_once_and_one_at_a_time(count):
    rounds = neighbours(count)
    for pairs in rounds:
        busy = [member for pair in pairs for member in pair]
        assert len(busy) == len(set(busy))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))
    assert set(met) == {frozenset((i, (i + 1) % count)) for i in range(count)}
    assert len(rounds) <= 3


def test_one_alone_meets_nobody():
    assert neighbours(1) == []


def test_ranks_spread_in_turn_find_their_hosts():
    found = places(["a", "b", "a", "b", "c"])
    assert [place.node for place in found] == [(0, 2), (1, 3), (0, 2), (1, 3), (4,)]
    assert found[0].num_hosts == 3
    assert found[0].pairs == ((0, 1, 2, 3), (), (0, 2, 4))
    assert found[4].pairs == ((), (1, 3, 4), (0, 2, 4))


def test_a_slurm_step_names_the_host_as_slurm_does():
    assert host_name({"SLURM_STEP_ID": "0", "SLURMD_NODENAME": "m1"}) == "m1"
    assert host_name({"SLURMD_NODENAME": "m1"}) == host_name({})
