"""Hosts and slots: no host and no device is given to two runs, and none is lost."""

from __future__ import annotations

import os
import random

import pytest

from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig
from megads.errors import LaunchError
from megads.launch.ensemble import places as module
from megads.launch.ensemble.members import Member
from megads.launch.ensemble.places import Place, Places, find_places
from megads.launch.nodes.memory import NodeRecord


def four() -> Places:
    return Places(("a", "b", "c", "d"), 4, "CUDA_VISIBLE_DEVICES", ("4", "5", "6", "7"), one_host=False)


def test_parts_of_a_host_share_the_fullest_one_and_whole_hosts_stay_free():
    places = four()
    first, second = places.take(Member("x", ranks=2)), places.take(Member("y", ranks=2))
    assert first == Place(("a",), (0, 1))
    assert second == Place(("a",), (2, 3))
    assert places.take(Member("z", hosts=3)) == Place(("b", "c", "d"))
    assert places.take(Member("w", ranks=1)) is None
    places.give_back(second)
    assert places.take(Member("w", ranks=1)) == Place(("a",), (2,))


def test_variables_of_a_place():
    places = four()
    assert places.variables(Place(("a",), (1, 3)), {}) == {
        "NHOSTS": "1",
        "NGPU_PER_HOST": "2",
        "CUDA_VISIBLE_DEVICES": "5,7",
    }
    assert places.variables(Place(("a", "b")), {}) == {"NHOSTS": "2"}
    alone = Places(("here",), 2)
    assert alone.variables(Place(("here",)), {}) == {}
    assert alone.variables(Place(("here",), (1,)), {}) == {"NHOSTS": "1", "NGPU_PER_HOST": "1"}


def test_no_slot_is_given_twice_and_all_come_back():
    """Drawn sizes, starts and ends, and hosts that fail meanwhile."""
    draw = random.Random(5)
    for _ in range(50):
        places, running = four(), []
        gone: set[str] = set()
        for _ in range(60):
            if running and draw.random() < 0.5:
                places.give_back(running.pop(draw.randrange(len(running))))
            else:
                size = {"ranks": draw.randrange(1, 5)} if draw.random() < 0.6 else {"hosts": draw.randrange(1, 4)}
                if (place := places.take(Member("m", **size))) is not None:
                    running.append(place)
                    assert not gone & set(place.hosts)
            if draw.random() < 0.03 and len(gone) < 3:
                host = draw.choice("abcd")
                assert places.exclude(host) == (host not in gone)
                gone.add(host)
            used = [(host, slot) for each in running for host in each.hosts for slot in each.slots or range(4)]
            assert len(set(used)) == len(used)
        for place in running:
            places.give_back(place)
        assert places.free == {host: [0, 1, 2, 3] for host in "abcd" if host not in gone}


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (Member("m", ranks=5), "m: ranks: 5, and a host takes 4; use fewer"),
        (Member("m", hosts=5), "m: hosts: 5, and 4 hosts can be used; use at most 4"),
    ],
)
def test_what_fits_nowhere_is_refused_before_anything_starts(member, message):
    with pytest.raises(LaunchError, match=message):
        four().refuse([Member("fits"), member])


def test_a_host_is_excluded_by_its_short_name():
    places = Places(("a.site", "b.site"), 1)
    assert places.exclude("a")
    assert list(places.free) == ["b.site"]
    assert not places.exclude("a")
    places.exclude("b")
    assert places.problem(Member("m", ranks=1)) == "no host is left"


def known(*hosts: str) -> dict[str, NodeRecord]:
    return {host: NodeRecord(host, 2.0, "devices: 3 of 4") for host in hosts}


def test_hosts_known_for_failures_stay_unused_while_every_run_finds_a_place():
    places = Places(("a", "b.site", "c", "d"), 4, one_host=False)
    lines = places.leave_out(known("b", "elsewhere", "a", "c"), [Member("small", ranks=2), Member("big", hosts=2)])
    assert list(places.free) == ["d", "c"]  # the worst first, as far as the largest run allows; what is needed is last
    assert lines == [
        "host b.site is left unused: devices: 3 of 4; megads nodes --forget b once it is repaired",
        "host a is left unused: devices: 3 of 4; megads nodes --forget a once it is repaired",
        "host c is used, as the runs need it: devices: 3 of 4; megads nodes --forget c once it is repaired",
    ]
    assert places.take(Member("big", hosts=2)) == Place(("d", "c"))


def test_this_host_without_a_scheduler_takes_as_many_ranks_as_it_has_cores():
    found = find_places(LaunchConfig(), {"MEGADS_DEVICE": "cpu"}, Facts())
    assert (found.one_host, found.slots, found.mask) == (True, len(os.sched_getaffinity(0)), "")


def test_hosts_of_a_list_with_devices_that_the_user_left(tmp_path, monkeypatch):
    (tmp_path / "hosts").write_text("n1\nn2\n")
    monkeypatch.setattr(module, "count_accelerators", lambda env: 4)
    monkeypatch.setattr(module, "visible_accelerators", lambda env: {"nvidia": 4})
    launch = LaunchConfig(hostfile=str(tmp_path / "hosts"))
    found = find_places(launch, {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, Facts(device="nvidia", ranks_per_host=4))
    assert (found.hosts, found.slots, found.one_host) == (("n1", "n2"), 4, False)
    assert found.variables(Place(("n1",), (0, 1)), {})["CUDA_VISIBLE_DEVICES"] == "3,2"
