"""What a rank sends, by hand; that it is what the real engines ask torch for: ``tests/trace/test_compare.py``."""

from __future__ import annotations

import pytest

from megads.plan.memory import stages
from megads.plan.traffic import Message, all_traffic, filled, loss_traffic, traffic

SMALL = {"NLAYERS": "4", "HIDDEN": "64", "HEADS": "8", "NUM_KV_HEAD": "8", "FFN_HIDDEN_SIZE": "128", "SEQ": "32"}
SMALL |= {"MICRO_BATCH": "2", "GRAD_ACC_STEPS": "3", "ENGINE": "native"}


def _run(env, world=8):
    from tests.trace.dry_runs import run_of

    return run_of("7B", world, SMALL | env)


def _first(run, world=8):
    return traffic(run, world, next(iter(stages(run))))


def test_a_layer_sums_four_activations_and_the_loss_two_numbers_of_a_token():
    run = _run({"TP": "4"})
    found = [each for each in _first(run) if each.axis == "tensor"]
    activation = 2 * 32 * 64 * 2
    assert [(each.kind, each.count, each.num_bytes) for each in found] == [("all-reduce", 3 * (4 * 4 + 2), activation)]
    losses = loss_traffic(run, next(iter(stages(run))))
    assert [(each.count, each.num_bytes) for each in losses] == [(3, 2 * 32 * 4), (3, 2 * 32 * 8)]


def test_a_stage_sends_to_each_neighbour_once_a_micro_batch_and_back():
    of_stages = all_traffic(_run({"PP": "4"}), 8)
    sends = [each.count for messages in of_stages for each in messages if each.axis == "pipe"]
    assert sends == [3, 6, 6, 3]


def test_parameters_and_parts_of_a_unit_begin_at_multiples_of_64():
    assert filled([64, 64], 1) == 128
    assert filled([1, 65], 1) == 64 + 128
    assert filled([1, 65], 4) == 4 * 64


def test_zero_3_gathers_a_layer_twice_but_for_those_that_stay():
    run = _run({"ZERO_STAGE": "3"})
    gathers = [each for each in _first(run) if each.kind == "all-gather" and each.what == "weights"]
    assert sum(each.count for each in gathers) == 4 + (2 * 3 - 1) * (4 - 1)


@pytest.mark.parametrize(("kind", "share"), [("all-reduce", 1.5), ("all-gather", 0.75), ("send", 1.0)])
def test_a_ring_sends_less_than_twice_the_tensor(kind, share):
    assert Message("data", kind, 4, 2, 100, "").sent_bytes == 2 * 100 * share
