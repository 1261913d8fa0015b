"""Planted faults in what ranks report: each must be named with its ranks and hosts."""

import time

import pytest

from megads.doctor.ranks import evaluate

HOSTS = ["a", "a", "b", "b"]


def _versions(**changed):
    base = {"versions": {"Python": "3.11.7", "torch": "2.13.0"}, "paths": {"megads at": "/x"}, "environment": {}}
    return {part: values | changed.get(part, {}) for part, values in base.items()}


def test_an_unequal_version_is_named_with_its_host():
    reports = [_versions() for _ in HOSTS]
    reports[2] = reports[3] = _versions(versions={"torch": "2.12.1"})
    reports[0] = _versions()
    found = evaluate.versions([*reports, _versions()], [*HOSTS, "c"])
    assert found.status == "failed"
    assert found.text == "torch 2.12.1 on ranks 2-3 (host b), 2.13.0 on the others"


def test_a_variable_of_a_library_that_differs_is_a_note():
    reports = [_versions() for _ in HOSTS]
    reports[1] = _versions(environment={"NCCL_ALGO": "Ring"})
    found = evaluate.versions(reports, HOSTS)
    assert found.status == "ok"
    assert found.notes == ("NCCL_ALGO Ring on rank 1 (host a), none on the others",)


def _device(identity, **more):
    return {"name": "GPU", "identity": identity, "free": 95, "total": 100} | more


def test_two_ranks_on_one_device_are_named():
    found = evaluate.devices([_device(each) for each in ("u0", "u0", "u0", "u1")], HOSTS)
    assert found.status == "failed"
    assert found.text.startswith("ranks 0-1 (host a) all use device u0; start fewer ranks per host")


def test_memory_that_somebody_else_uses_is_a_note():
    found = evaluate.devices([_device("u0"), _device("u1", free=40), _device("u0"), _device("u1")], HOSTS)
    assert found.status == "ok"
    assert found.notes == ("memory is in use already, least free 40 B: rank 1 (host a)",)


def test_a_wrong_product_and_a_slow_device_are_named():
    reports = [{"wrong": [], "tflops": speed, "dtypes": ["fp32"], "timed": "fp32"} for speed in (1.0, 1.1, 0.4, 1.0)]
    assert evaluate.products(reports, HOSTS).notes == ("less than half the median of 1 TFLOP/s: rank 2 (host b)",)
    reports[1]["wrong"] = ["3 of 9 elements of a product in bf16 are wrong"]
    found = evaluate.products(reports, HOSTS)
    assert (found.status, found.text) == ("failed", "3 of 9 elements of a product in bf16 are wrong: rank 1 (host a)")


def test_a_clock_that_is_off_is_named():
    found = evaluate.clocks([0.0, 0.01, -70.0, -70.1], HOSTS)
    assert found.status == "failed"
    assert found.text.startswith("clocks differ: ranks 2-3 (host b); largest difference to rank 0 -70.100 s")


def test_a_host_without_a_rank_is_named():
    report = {"host": "a.site", "connect_s": 0.1, "round_trip_s": 1e-4}
    found = evaluate.meeting([report, report], ["a", "b"], "a:1")
    assert found.status == "failed"
    assert found.text.startswith("no rank runs on b; 2 ranks on 1 host joined at a:1")
    assert evaluate.meeting([report, report], ["a"], "a:1").status == "ok"


def test_a_host_whose_disk_can_not_be_written_is_named():
    good = {"problem": "", "free": 2**40, "write_per_s": 2e9, "tmp": "/tmp", "tmp_free": 2**30}
    bad = good | {"problem": "/runs: No space left on device"}
    assert evaluate.disks([good, None, good, None], HOSTS, "/runs").status == "ok"
    found = evaluate.disks([good, None, bad, None], HOSTS, "/runs")
    assert (found.status, found.text) == ("failed", "/runs: No space left on device (host b)")
    slow = good | {"write_per_s": 1e8, "tmp_free": 2**20}
    notes = evaluate.disks([good, None, slow, None], HOSTS, "/runs").notes
    assert notes == ("less than 1 GiB left in /tmp of host b", "far below the median write speed: host b")


def test_an_own_name_that_others_can_not_reach_is_a_note():
    reports = [
        {"master": "10.0.0.1", "resolve_s": 0.0, "own": own, "boot": own, "interface": "", "interfaces": ["lo", "hsn0"]}
        for own in ("10.0.0.1", "127.0.1.1")
    ]
    (note,) = evaluate.names(reports, ["a", "b"], "a").notes
    assert "127.0.1.1 on rank 1 (host b)" in note
    assert "GLOO_SOCKET_IFNAME" in note
    assert evaluate.names(reports[1:], ["b"], "b").notes == ()


def _rows(slowness=1.0):
    return [["all_reduce", 1024, 1e-3], ["all_reduce", 2**20, 1e-3 * slowness]]


@pytest.mark.parametrize(("slowness", "status"), [(1.5, "ok"), (3.0, "ok"), (30.0, "failed")])
def test_a_slow_host_is_marked_and_a_broken_one_fails(slowness, status):
    teams = {"a": _rows(), "b": _rows(slowness), "c": _rows(), "d": _rows()}
    found = evaluate.bandwidth(teams, 4, "host")
    assert found.status == status
    said = found.text.startswith("far below") or any("slow, below half" in note for note in found.notes)
    assert said == (slowness > 2)
    if said:
        assert "b (" in (found.text if status == "failed" else found.notes[0])
        assert any("b: " in line for line in found.details)


def test_bandwidth_follows_nccl_tests():
    found = evaluate.bandwidth({"a": [["all_reduce", 2**20, 0.5], ["all_gather", 2**20, 0.25]]}, 4, "host")
    reduce, gather = found.data
    assert reduce["algorithmic_per_s"] == 2**21
    assert reduce["bus_per_s"] == 2**21 * 1.5
    assert gather["bus_per_s"] == 2**22 * 0.75
    assert found.text == "1 host; all_reduce of 1 MiB: 3 MiB/s bus"


def test_a_wrong_answer_is_told_once_with_everybody_who_got_it():
    reports = [{"wrong": ["all_gather bf16: element 8 is 3, not 1: the part of rank 1"]} for _ in HOSTS]
    found = evaluate.collectives(reports, HOSTS, "here")
    assert found.status == "failed"
    assert found.text == (
        "all_gather bf16: element 8 is 3, not 1: the part of rank 1, on ranks 0-1 (host a), ranks 2-3 (host b)"
    )


def test_ten_thousand_ranks_are_judged_at_once():
    hosts = [f"host{rank // 12:04d}" for rank in range(10_000)]
    versions = [_versions() for _ in hosts]
    for rank in range(500, 900):
        versions[rank] = _versions(versions={"torch": f"2.{rank}"})
    started = time.process_time()
    found = evaluate.versions(versions, hosts)
    evaluate.devices([_device(f"u{rank % 12}") for rank in range(10_000)], hosts)
    assert evaluate.bandwidth({host: _rows() for host in dict.fromkeys(hosts)}, 12, "host").status == "ok"
    assert found.status == "failed"
    assert len(found.text) < 2000
    assert time.process_time() - started < 4
