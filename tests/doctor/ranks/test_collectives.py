"""Collectives on real ranks: right ones pass, a planted wrong answer is named with its rank."""

import contextlib

import pytest
import torch
import torch.distributed as dist

from megads.doctor.ranks.collectives import CHECKS, Team, check_team, make_team
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
@pytest.mark.parametrize("check", [_a_backend_without_a_collective_says_so])
def test_two_ranks(check):
    run_ranks(2, check)


@pytest.mark.dist
@pytest.mark.parametrize("check", [_a_lost_part_of_a_sum_is_named])
def test_four_ranks(check):
    run_ranks(4, check)


def test_ranks_of_many_are_told_apart():
    from megads.doctor.ranks.collectives import _of_rank

    far = (0, 1, 126, 127, 128, 16128, 16129, 999_999)
    assert len({tuple(_of_rank(rank).tolist()) for rank in far}) == len(far)
    assert all(0 <= number < 127 for rank in far for number in _of_rank(rank).tolist())


def test_a_team_knows_its_size():
    assert Team(None, (3, 5), CPU).size == 2  # type: ignore[arg-type]
