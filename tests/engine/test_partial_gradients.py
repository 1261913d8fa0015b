"""Gradients of norms that ranks hold a part of each are summed once a step, and everything is as on one rank.

How many messages that are: tests/parity/test_traffic.py.
"""

from __future__ import annotations

import pytest

from tests.engine.plain import batches, make_engine, rate, settings, trains_like_one_rank
from tests.ranks import groups_of, run_ranks

SCATTER = {"parallel.scatter_norms": "1"}
GPT = {"model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
QWEN3 = {"model.family": "qwen3"}
TP2, PP2TP2, TP2DP2 = {"tensor": 2}, {"pipe": 2, "tensor": 2}, {"tensor": 2, "data": 2}
CASES = {
    **{f"zero{stage}": (TP2, {**SCATTER, "parallel.zero_stage": str(stage)}) for stage in range(4)},
    **{f"dp2-zero{stage}": (TP2DP2, {**SCATTER, "parallel.zero_stage": str(stage)}) for stage in (1, 2)},
    "overlap": (TP2DP2, {**SCATTER, "parallel.zero_stage": "1", "parallel.ddp_impl": "torch"}),
    "pp2-tied": (PP2TP2, {**SCATTER, **GPT, "parallel.zero_stage": "1"}),
    "heads": (TP2, {**QWEN3, "parallel.zero_stage": "1"}),
    "heads-scatter": (TP2, {**QWEN3, **SCATTER, "parallel.zero_stage": "0"}),
}


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES)
def test_norms_train_like_one_rank(case):
    grid, changes = CASES[case]
    run_ranks(2 if grid is TP2 else 4, trains_like_one_rank, grid, changes)


def _sums_are_float32(dtype: str) -> None:
    """In half precision the sums of micro-batches are added, not those of each micro-batch in half precision."""
    import torch
    import torch.distributed as dist

    run, groups = settings(TP2, **SCATTER, **{"train.dtype": dtype, "parallel.zero_stage": "1"}), groups_of(**TP2)
    engine = make_engine(run, groups)
    assert len(engine.partial.weights) == 5
    assert engine.partial.are_taken
    seen: list[torch.dtype] = []
    reduce = dist.all_reduce

    def note(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        if tensor.numel() == 5 * run.model.hidden_size:
            seen.append(tensor.dtype)
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = note
    try:
        for step in range(2):
            engine.train_step(batches(run, step, 0), rate(step))
    finally:
        dist.all_reduce = reduce
    assert seen == [torch.float32] * 2


@pytest.mark.dist
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_step_sums_once_in_float32(dtype):
    run_ranks(2, _sums_are_float32, dtype)


def _a_step_that_does_not_sum_is_an_error() -> None:
    engine = make_engine(settings(TP2, **SCATTER), groups_of(**TP2))
    engine.partial.is_done = False
    with pytest.raises(AssertionError, match="not summed over tensor-parallel ranks"):
        engine.partial.check()


@pytest.mark.dist
def test_a_step_that_does_not_sum_is_an_error():
    run_ranks(2, _a_step_that_does_not_sum_is_an_error)
