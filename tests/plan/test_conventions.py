"""What other systems store, by hand."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.conventions import MEGATRON_CORE, MIB, megatron_core
from megads.plan.memory import estimate, stage_memories
from megads.plan.parts.activations import layer_bytes

GPT = {"MODEL_FAMILY": "gpt", "NLAYERS": "12", "HIDDEN": "512", "HEADS": "8", "SEQ": "1024", "MICRO_BATCH": "4"}


def run_of(env: dict[str, str], ranks: int = 8) -> RunConfig:
    resolved = resolve("", env={"TRAIN_ITERS": "9", "DTYPE": "bf16", **GPT, **env}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=50257).run


def test_a_layer_keeps_34_bytes_of_a_number_and_5_of_a_score():
    """Of Megatron-LM's layers, arXiv 2205.05198 section 4; and 4 for a row of fused attention."""
    run, numbers, rows = run_of({}), 4 * 1024 * 512, 4 * 1024 * 8
    fused, not_fused = megatron_core("h100"), megatron_core("h100", is_fused=False)
    assert layer_bytes(run, fused) == 34 * numbers + 4 * rows
    assert layer_bytes(run, not_fused) == 34 * numbers + 4 * rows + 5 * rows * 1024
    assert layer_bytes(run, megatron_core("a100")) == 36 * numbers + 4 * rows
    split = run_of({"TP": "4"})
    assert layer_bytes(split, fused) == (10 + 24 // 4) * numbers + rows
    scattered = run_of({"TP": "4", "SCATTER_NORMS": "1"})
    assert layer_bytes(scattered, fused) == 34 * numbers // 4 + rows


@pytest.mark.parametrize(
    ("dtype", "zero", "bytes_of_one"), [("bf16", 0, 18), ("bf16", 1, 6 + 12 / 8), ("fp16", 0, 20), ("fp16", 1, 4 + 2)]
)
def test_bytes_of_a_parameter(dtype, zero, bytes_of_one):
    run = run_of({"DTYPE": dtype, "ZERO_STAGE": str(zero)})
    found = estimate(run, 8, MEGATRON_CORE)
    count = 12 * (12 * 512**2 + 13 * 512) + (50304 + 1024) * 512 + 1024
    assert found.weights + found.gradients + found.optimizer == pytest.approx(count * bytes_of_one)
    assert (found.program, found.copy) == (0, 0)


def test_libraries_take_what_they_document():
    assert megatron_core("a100", is_deterministic=True).library_bytes == (2 * 32 + 4) * MIB
    assert megatron_core("h100", is_deterministic=True).library_bytes == (2 * 32 + 32) * MIB
    assert megatron_core("a100").library_bytes == (2 * 8.125 + 4) * MIB
    local = megatron_core("h100", implementation="local", is_deterministic=True)
    assert local.library_bytes == 64 * MIB
    assert stage_memories(run_of({}), 8, local)[0].buffers == 2 * 4 * 8 * 1024**2


def test_memories_of_all_stages():
    """Interleaved stages hold chunks of several micro-batches, the last one as well."""
    run = run_of({"PP": "4", "NUM_LAYERS_PER_VIRTUAL_STAGE": "1", "GLOBAL_BATCH": "64"})
    by = megatron_core("h100")
    found = stage_memories(run, 8, by)
    assert [each.activations // layer_bytes(run, by) for each in found] == [15, 13, 11, 9]
    assert [bool(each.logits) for each in found] == [False, False, False, True]
    assert max(found, key=lambda each: each.total) == estimate(run, 8, by)
