"""What stages do in a step, before any rate of a device."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.families.decoder import spec_of
from megads.plan.flops import products
from megads.plan.places.place import place_of
from megads.plan.time.systems import MEGADS, SYSTEMS
from megads.plan.time.work import SCORE_BYTES, works

H100 = place_of("h100")
SIZES = {"NLAYERS": "16", "HIDDEN": "4096", "HEADS": "32", "SEQ": "4096", "DTYPE": "bf16"}


def _works(ranks=1, system=MEGADS, **env):
    resolved = resolve(env={**SIZES, **env}, machine="generic")
    run = derive(resolved, num_hosts=-(-ranks // 8), ranks_per_host=min(8, ranks), vocab_size=32_000).run
    return run, works(run, ranks, H100, system)


def test_stages_with_the_same_work_are_one_kind():
    _, found = _works(8, PP="8", GRAD_ACC_STEPS="8")
    assert [(count, each.stage.has_embedding, each.stage.has_head) for count, each in found] == [
        (1, True, False),
        (6, False, False),
        (1, False, True),
    ]


def test_products_are_those_of_the_flops():
    run, [(_, found)] = _works()
    of_layer = products(run.model, run.model.seq_length)
    whole = 6 * 4096 * (16 * (of_layer.projections + of_layer.mlp) + of_layer.logits)
    assert found.products == pytest.approx(whole / 989e12)
    assert found.head == pytest.approx(6 * 4096 * of_layer.logits / 989e12)
    # Fused attention computes its scores again in the backward pass: seven products in place of six, half are masked.
    assert found.core == pytest.approx(7 / 2 * 4096 * 16 * of_layer.core / 989e12)


def test_fp8_halves_the_time_of_layers_only():
    _, [(_, plain)] = _works(system=SYSTEMS["megatron-core"])
    _, [(_, eight)] = _works(system=SYSTEMS["megatron-core-fp8"])
    assert eight.products == plain.head == eight.head
    assert eight.products_8 == pytest.approx((plain.products - plain.head) / 2)


def test_fp8_moves_bytes_in_place_of_halves_and_casts_what_layers_multiply():
    run, [(_, plain)] = _works(system=SYSTEMS["megatron-core"])
    _, [(_, eight)] = _works(system=SYSTEMS["megatron-core-fp8"])
    assert plain.casts == 0
    assert eight.operands == pytest.approx(plain.operands * (1 + 1 + 2) / (2 + 2 + 2))
    sides = sum(sum(matrix.shape) for matrix in spec_of(run.model).matrices())
    assert eight.casts == pytest.approx(16 * 4096 * sides * (2 + 1 + 1) / 3350e9)


def test_ranks_that_share_heads_cast_all_inputs():
    _, [(_, one)] = _works(system=SYSTEMS["megatron-core-fp8"])
    _, [(_, four)] = _works(4, SYSTEMS["megatron-core-fp8"], TP="4")
    assert four.products_8 == pytest.approx(one.products_8 / 4)
    assert one.casts / 4 < four.casts < one.casts


def test_scores_operator_by_operator_move_each_change_of_type():
    forward = 2 + (2 + 4) + (4 + 4) + (4 + 1 + 4) + (4 + 4) + (4 + 2) + (2 + 2 + 1) + 2
    backward = (2 + 2) + (2 + 1 + 2) + (2 + 4) + (4 + 4 + 4) + (4 + 1 + 4) + (4 + 4) + (4 + 2) + (2 + 2)
    assert SCORE_BYTES["eager"] == (forward, backward)


def test_a_ring_passes_keys_and_values_where_ulysses_exchanges_heads():
    env = {"SP": "4", "NUM_KV_HEAD": "8"}
    _, [(_, ring)] = _works(4, SYSTEMS["megatron-core"], **env)
    _, [(_, heads)] = _works(4, **env)
    # Three passes of the other ranks' keys and values of 8 heads of 128, of a quarter of the tokens, in bf16.
    assert ring.seq.seconds == pytest.approx(16 * 3 * 3 * 2 * 1024 * 8 * 128 * 2 / 450e9)
    assert 0 < heads.seq.seconds != ring.seq.seconds
    assert ring.seq.ranks == heads.seq.ranks == 4


def test_scores_in_memory_count_only_where_a_kernel_keeps_them():
    _, [(_, fused)] = _works()
    _, [(_, unfused)] = _works(system=SYSTEMS["megatron-2021"])
    assert fused.scores == 0
    assert unfused.scores == pytest.approx(28 * 16 * 32 * 4096 * 4096 / 3350e9)
