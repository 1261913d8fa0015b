"""Memory of long rows: what grows with them, and host memory. The figures are tracked in ``tests/simgpu``."""

from __future__ import annotations

import pytest

from megads.plan.memory import GIB, estimate, host_bytes
from megads.plan.parts.long_context import chunk_bytes, host_checkpoint_bytes, working_bytes
from tests.engine.plain import settings

LONG = {"recompute.granularity": "full", "recompute.mlp_tiles": "4", "recompute.loss_chunk": "64"}
BATCH = {"train.micro_batch": "1", "train.grad_acc_steps": "1", "train.global_batch": "1"}
SIZES = {
    "model.vocab_size": "8192",
    "model.hidden_size": "256",
    "model.num_heads": "8",
    "model.num_kv_heads": "4",
    **BATCH,
}


def _run(length: int, **changes: str):
    return settings({}, **SIZES, **{"model.seq_length": str(length)}, **changes)


def test_a_chunk_of_logits_does_not_grow_with_the_row():
    model = _run(4096).model
    states = 3 * 4096 * model.hidden_size * 4
    assert chunk_bytes(_run(8192, **LONG)) - chunk_bytes(_run(4096, **LONG)) == states


def test_a_chunk_has_no_more_tokens_than_a_micro_batch():
    given = {**LONG, "recompute.loss_chunk": "1000000"}
    assert chunk_bytes(_run(64, **given)) == chunk_bytes(_run(64, **{**LONG, "recompute.loss_chunk": "64"}))


def test_plain_runs_work_in_what_they_keep():
    assert working_bytes(_run(4096)) == 0
    assert working_bytes(_run(4096, **{"recompute.granularity": "full"})) == 0


@pytest.mark.parametrize("length", [4096, 65536])
def test_parts_need_less_than_the_whole(length):
    whole, full = _run(length), _run(length, **{"recompute.granularity": "full"})
    chunks = _run(length, **{"recompute.granularity": "full", "recompute.loss_chunk": "64"})
    sizes = [estimate(run, 1).total for run in (whole, full, chunks, _run(length, **LONG))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_checkpoints_on_the_host_are_counted_there_in_powers_of_two():
    run = _run(3000, **LONG, **{"recompute.cpu_checkpointing": "1"})
    one = 3000 * 256 * 4
    assert host_checkpoint_bytes(run, 6, 1) == 6 * (1 << 22)
    assert 1 << 21 < one < 1 << 22
    assert host_checkpoint_bytes(run.model_copy(update={"machine": "cpu"}), 6, 1) == 0
    without = _run(3000, **LONG)
    assert host_bytes(run, 1) - host_bytes(without, 1) == host_checkpoint_bytes(run, run.model.num_layers, 1)
    assert estimate(run, 1).total < estimate(without, 1).total + GIB
