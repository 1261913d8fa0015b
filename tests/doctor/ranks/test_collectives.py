"""Collectives on real ranks: right ones pass, a planted wrong answer is named with its rank."""

import contextlib

import pytest
import torch
import torch.distributed as dist

from megads.device import facts
from megads.doctor.ranks import bandwidth, evaluate, stages
from megads.doctor.ranks.bandwidth import measure, measure_pairs
from megads.doctor.ranks.checks import Rank, check_pair, claim_device, report_versions, time_pairs
from megads.doctor.ranks.collectives import CHECKS, Team, check_team, make_team
from megads.doctor.ranks.host_groups import places
from megads.doctor.ranks.rendezvous import Meeting
from tests.ranks import run_ranks

CPU = torch.device("cpu")


def _team():
    return make_team(range(dist.get_world_size()), CPU, "gloo", 30, world=True)


def _nothing(*_):
    pass


@contextlib.contextmanager
def _patched(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield before
    finally:
        setattr(module, name, before)


def _all_is_right():
    seen = []
    assert check_team(_team(), seen.append) == {"wrong": [], "lacks": []}
    assert {"all_reduce bf16", "all_to_all int64", "send/recv fp16", "barrier"} <= set(seen)


def _a_group_of_one_is_right():
    team = make_team([dist.get_rank()], CPU, "gloo", 30)
    assert check_team(team, _nothing) == {"wrong": [], "lacks": []}


def _falsified(call, position):
    """Return ``call`` with the first number of its argument at ``position`` changed before, as a bad link would."""

    def wrong(*args, **kwargs):
        args[position].view(-1)[0] += 1
        return call(*args, **kwargs)

    return wrong


SENT = {
    "all_reduce": ("all_reduce", 0),
    "all_gather": ("all_gather_into_tensor", 1),
    "reduce_scatter": ("reduce_scatter_tensor", 1),
    "broadcast": ("broadcast", 0),
    "all_to_all": ("all_to_all_single", 1),
    "send/recv": ("P2POp", 1),
}


def _a_wrong_part_is_named(name):
    """Rank 1 of 2 sends something wrong."""
    team, rank = _team(), dist.get_rank()
    call, position = SENT[name]
    wrong = _falsified(getattr(dist, call), position)
    if name == "send/recv":
        right = dist.P2POp

        def wrong(op, x, *more, **kwargs):
            return right(op, x + 1 if op is dist.isend else x, *more, **kwargs)

    with _patched(dist, call, wrong) if rank == 1 else contextlib.nullcontext():
        problem = CHECKS[name](team, torch.int64)
    # What is wrong at rank 0 came from rank 1, except a sum's element that belongs to any of them.
    assert "not" in problem or rank == 1, problem
    if rank == 0 and name not in ("all_reduce", "reduce_scatter"):
        assert problem.endswith("the part of rank 1"), problem


def _a_lost_part_of_a_sum_is_named():
    """Rank 1 of 4 gives nothing to the sum."""
    team, rank = _team(), dist.get_rank()

    def silent(x, *args, **kwargs):
        x.zero_()
        return right(x, *args, **kwargs)

    right = dist.all_reduce
    with _patched(dist, "all_reduce", silent) if rank == 1 else contextlib.nullcontext():
        problem = CHECKS["all_reduce"](team, torch.bfloat16)
    assert problem == "element 1 is 0, not 2: the part of rank 1"


def _a_backend_without_a_collective_says_so():
    def refuse(*_, **__):
        raise RuntimeError("gloo does not support this")

    with _patched(dist, "reduce_scatter_tensor", refuse):
        found = check_team(_team(), _nothing)
    assert found["wrong"] == []
    assert "reduce_scatter fp32" in found["lacks"]


def _a_slow_pair_is_named(names):
    """Of the neighbours 0-1-2-3 the pair 1, 2 is slow."""
    import time

    team = _team()
    right = bandwidth.exchange

    def slow(team, x, out, other):
        if {team.me, other} == {1, 2}:
            time.sleep(0.3)
        right(team, x, out, other)

    with _patched(bandwidth, "exchange", slow):
        rows = measure_pairs(team, _nothing, _nothing)
    gathered = [None] * 4
    dist.all_gather_object(gathered, {"rows": [["all_reduce", 1024, 1e-3]], "pairs": rows})
    found = stages._host_speed(gathered, ["h"] * 4)
    assert found.status == "failed"
    assert found.text.startswith("far below the median")
    assert names in found.text
    assert found.text.count("ranks") == 1


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
    right = bandwidth._call

    def slow(name, team, count):
        call = right(name, team, count)
        return (lambda: (time.sleep(0.2), call())) if team.ranks == (1, 2) else call

    with _patched(bandwidth, "_call", slow):
        rows = time_pairs(rank)
    gathered = [None] * 4
    dist.all_gather_object(gathered, rows)
    found = stages._pair_speed(gathered, hosts)
    assert found.status == "failed"
    assert "hosts b and c (" in found.text
    assert "hosts a and b" not in found.text


def _info():
    from megads.cluster.ranks import RankInfo

    return RankInfo(dist.get_rank(), dist.get_world_size(), dist.get_rank(), dist.get_world_size(), "test")


def _unequal_versions_are_found(folder):
    me = dist.get_rank()
    env = {"MEGADS_DEVICE": "cpu", "SECRET": "x"} | ({"NCCL_ALGO": "Ring"} if me else {})
    rank = Rank(_info(), env, "h", None, 30.0, folder)
    report = report_versions(rank)
    assert "SECRET" not in report["environment"]
    if me:
        report["versions"]["torch"] = "0.1"
    gathered = [None] * 2
    dist.all_gather_object(gathered, report)
    found = evaluate.judge_versions(gathered, ["a", "b"])
    assert found.text.startswith("torch 0.1 on rank 1 (host b), ")
    assert found.notes == ("NCCL_ALGO Ring on rank 1 (host b), none on the others",)


def _ranks_of_one_device_are_found():
    rank = Rank(_info(), {"MEGADS_DEVICE": "cpu"}, "h", None, 30.0, None)
    with _patched(facts, "identity", lambda row, device: "GPU-0"):
        report = claim_device(rank)
    gathered = [None] * 2
    dist.all_gather_object(gathered, report)
    found = evaluate.judge_devices(gathered, ["h", "h"])
    assert found.status == "failed"
    assert found.text.startswith("ranks 0-1 (host h) all use device GPU-0; ")
    assert evaluate.judge_devices(gathered, ["h", "g"]).status == "ok"


def _measures_are_plausible():
    rows = measure(_team(), _nothing, _nothing, ["all_reduce", "broadcast"])
    if dist.get_rank():
        assert rows == []
    else:
        assert [(row[0], row[1]) for row in rows] == [
            (name, size) for name in ("all_reduce", "broadcast") for size in bandwidth.SIZES["cpu"]
        ]
        assert all(0 < seconds < 10 for _, _, seconds in rows)


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("check", [_all_is_right, _a_group_of_one_is_right])
def test_right_answers_pass(size, check):
    run_ranks(size, check)


@pytest.mark.dist
@pytest.mark.parametrize("name", SENT)
def test_a_wrong_answer_is_named(name):
    run_ranks(2, _a_wrong_part_is_named, name)


@pytest.mark.dist
@pytest.mark.parametrize(
    "check", [_a_backend_without_a_collective_says_so, _ranks_of_one_device_are_found, _measures_are_plausible]
)
def test_two_ranks(check):
    run_ranks(2, check)


@pytest.mark.dist
@pytest.mark.parametrize("check", [_a_lost_part_of_a_sum_is_named, _a_slow_pair_of_hosts_is_named])
def test_four_ranks(check):
    run_ranks(4, check)


@pytest.mark.dist
def test_a_slow_pair_of_ranks_is_named():
    run_ranks(4, _a_slow_pair_is_named, "ranks 1 and 2 (host h) (")


@pytest.mark.dist
def test_unequal_versions_of_real_ranks(tmp_path):
    run_ranks(2, _unequal_versions_are_found, tmp_path)


def test_ranks_of_many_are_told_apart():
    from megads.doctor.ranks.collectives import _of_rank

    far = (0, 1, 126, 127, 128, 16128, 16129, 999_999)
    assert len({tuple(_of_rank(rank).tolist()) for rank in far}) == len(far)
    assert all(0 <= number < 127 for rank in far for number in _of_rank(rank).tolist())


def test_a_team_knows_its_size():
    assert Team(None, (3, 5), CPU).size == 2  # type: ignore[arg-type]
