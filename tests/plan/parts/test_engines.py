"""What engines hold, against counts by hand."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.memory import (
    count_parameters,
    count_trained,
    parameters_of,
    stages,
    state_bytes,
    trained_of,
)
from megads.plan.parts.engines import SMALL_UNITS, held, joined, native_zero_stage, sections_of

SIZES = {"SEQ": "16", "GLOBAL_BATCH": "8", "MICRO_BATCH": "1", "TRAIN_ITERS": "10", "ENGINE": "native"}


def _held(env, ranks=2, machine="generic", rank_stage=0):
    asked = resolve("tiny", env={**SIZES, **env}, machine=machine)
    run = derive(asked, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run
    stage = list(stages(run))[rank_stage]
    return run, stage, held(run, ranks, stage, parameters_of(run, stage), state_bytes(run))


# Bytes of a parameter on two ranks together: weight, gradient, optimizer.
HELD = [
    ("0", "fp32", 8, 8, 16),
    ("1", "fp32", 8, 8, 8),
    ("2", "fp32", 8, 4, 8),
    ("3", "fp32", 4, 4, 8),
    ("0", "bf16", 4, 8, 24),
    ("1", "bf16", 4, 8, 12),
    ("2", "bf16", 4, 4, 12),
    ("3", "bf16", 2, 4, 12),
]


@pytest.mark.parametrize(("zero", "dtype", "weights", "gradients", "optimizer"), HELD)
def test_native_holds_what_each_stage_must(zero, dtype, weights, gradients, optimizer):
    run, _, found = _held({"ZERO_STAGE": zero, "DTYPE": dtype})
    count = count_parameters(run.model)
    assert [found.weights * 2, found.gradients * 2, found.optimizer * 2] == [
        each * count for each in (weights, gradients, optimizer)
    ]


def test_one_rank_shares_with_nobody():
    run, _, found = _held({"ZERO_STAGE": "3", "DTYPE": "bf16"}, ranks=1)
    assert native_zero_stage(run, 1) == 0
    assert (found.weights, found.optimizer, found.buffers) == tuple(count_parameters(run.model) * n for n in (2, 12, 0))


def test_offload_leaves_the_sums_on_the_device():
    env = {"ZERO_STAGE": "2", "DTYPE": "bf16"}
    _, _, plain = _held(env)
    _, _, moved = _held({**env, "OFFLOAD_OPTIMIZER": "cpu"})
    assert (moved.optimizer, moved.gradients) == (0, plain.gradients)
    _, _, here = _held({**env, "OFFLOAD_OPTIMIZER": "cpu", "MACHINE": "cpu"}, machine="cpu")
    assert here.optimizer == plain.optimizer
    _, _, masters = _held({"ZERO_STAGE": "1", "DTYPE": "fp32", "OFFLOAD_OPTIMIZER": "cpu"})
    assert masters.optimizer == 0


def test_a_second_copy_of_the_weights_is_shared_by_a_host():
    env = {"ZERO_STAGE": "3", "DTYPE": "bf16"}
    run, _, plain = _held(env, ranks=4)
    _, _, second = _held({**env, "ZERO_HPZ_PARTITION_SIZE": "2"}, ranks=4)
    assert second.weights - plain.weights == count_parameters(run.model)  # 2 bytes of the half


def test_buffers_are_of_reductions_on_their_way_and_of_gathered_weights():
    run, stage, one = _held({"ZERO_STAGE": "1"})
    assert one.buffers == 0
    units = joined(sections_of(run, stage), run.deepspeed.reduce_bucket_size)
    assert SMALL_UNITS <= len(units) <= run.model.num_layers + 2
    _, _, two = _held({"ZERO_STAGE": "2"})
    assert 8 * max(units) <= two.buffers <= 4 * 3 * sum(units)
    sections = sections_of(run, stage)
    _, _, three = _held({"ZERO_STAGE": "3", "DTYPE": "bf16"})
    sums = sum(4 * size * (min(2, sections.count(size)) + 1) for size in set(sections))
    assert three.buffers == sums + 2 * sum(sorted(sections)[-4:])


def test_units_are_neighbours_up_to_a_bucket():
    assert joined([10, 1, 1, 1, 1, 10], 100) == [10, 4, 10]
    assert joined([10, 1, 1, 1, 1, 10], 2) == [10, 2, 2, 10]
    assert joined([5], 1) == [5]


def test_a_tied_copy_has_weights_only():
    env = {"PP": "2", "GRAD_ACC_STEPS": "8", "MODEL_FAMILY": "gpt"}
    run, last, found = _held(env, rank_stage=1)
    assert run.model.tied_embeddings
    own = sum(sections_of(run, last))
    copy = parameters_of(run, last) - own
    assert copy > 0
    assert (found.weights, found.gradients) == (4 * (own + copy), 4 * own)


@pytest.mark.parametrize("engine", ["native", "deepspeed"])
@pytest.mark.parametrize(("zero", "dtype", "weights", "gradients", "optimizer"), HELD)
def test_frozen_weights_have_neither_gradients_nor_optimizer(zero, dtype, weights, gradients, optimizer, engine):
    run, stage, found = _held({"ZERO_STAGE": zero, "DTYPE": dtype, "LORA_RANK": "2", "ENGINE": engine})
    count = count_parameters(run.model)
    width, inner, layers = run.model.hidden_size, run.model.ffn_hidden_size, run.model.num_layers
    kv = run.model.num_kv_heads * run.model.head_dim
    inputs = 3 * width + width + 2 * width + inner  # of q, k and v, out, gate and up, down
    outputs = width + 2 * kv + width + 2 * inner + width
    trained = 2 * layers * (inputs + outputs)
    assert trained == trained_of(run, stage) == count_trained(run.model)
    assert found.weights * 2 == weights * count
    if engine == "native":
        assert [found.gradients * 2, found.optimizer * 2] == [gradients * trained, optimizer * trained]
    else:
        assert found.gradients + found.optimizer < (gradients + optimizer + 1) * trained
