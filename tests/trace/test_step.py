"""Which ranks can be traced, and that a trace leaves the process as it was."""

from __future__ import annotations

import multiprocessing

import pytest

from megads.errors import ConfigError
from tests.trace.dry_runs import run_of

SMALL = {"NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "SEQ": "32"}
SMALL |= {"ENGINE": "native", "MICRO_BATCH": "1"}


@pytest.mark.parametrize("rank", [-1, 8, 100_000])
def test_a_rank_outside_of_the_world_is_one_line(rank):
    from megads.trace.step import trace

    with pytest.raises(ConfigError, match=rf"--rank {rank}: the ranks of --world 8 are 0 to 7"):
        trace(run_of("7B", 8, SMALL), rank, 8)


def test_rows_from_files_are_refused():
    from megads.trace.step import check_rank

    run = run_of("7B", 8, SMALL)
    run = run.model_copy(update={"finetune": run.finetune.model_copy(update={"task": "MNLI"})})
    with pytest.raises(ConfigError, match="TASK=MNLI are read from files"):
        check_rank(run, 0, 8)


def _twice():
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    import megads.models.build as build
    from megads.timing.sections import _Running
    from megads.trace.step import trace

    run, before = run_of("7B", 8, SMALL | {"TP": "2"}), (build.initialise, F.rms_norm, torch.nn.Module.to)
    first, second = (trace(run, 3, 8) for _ in range(2))
    assert first == second
    assert (build.initialise, F.rms_norm, torch.nn.Module.to) == before
    assert not dist.is_initialized()
    assert _Running.clock is None
    assert type(torch.zeros(1)) is torch.Tensor
    return first


def test_a_trace_is_the_same_again_and_leaves_nothing_behind():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(_twice)
    assert found.stage == 0
    assert found.peak.total > 0
    assert {call.phase for call in found.calls} == {"forward", "backward", "update"}
    tensor = next(call for call in found.calls if call.axis == "tensor")
    assert tensor.ranks == (2, 3)
    data = next(call for call in found.calls if call.axis == "data")
    assert data.ranks == (1, 3, 5, 7)
