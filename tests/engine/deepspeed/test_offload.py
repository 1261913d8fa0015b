"""State in host memory, and a second copy of the weights nearby (hpZ): the numbers stay the same."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.engine.plain import goes_on_bitwise, make_engine, settings, train, trains_like_one_rank
from tests.engine.test_zero_stages import (
    GRIDS,
    HPZ,
    KINDS,
    SHARING,
    SPLIT_ALL,
    half_is_near_fp32,
    moves_between,
    size,
)
from tests.ranks import groups_of, run_ranks


@pytest.mark.dist
@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize("grid", ["dp2", "tp2dp2"])
def test_an_optimizer_in_host_memory_trains_the_same(grid, kind):
    changes = {**KINDS[kind], "deepspeed.offload_optimizer": "cpu"}
    run_ranks(size(GRIDS[grid]), trains_like_one_rank, GRIDS[grid], changes)


@pytest.mark.dist
@pytest.mark.parametrize("optimizer", ["none", "cpu"])
@pytest.mark.parametrize("kind", ["zero3", "zero3-all"])
def test_weights_in_host_memory_train_the_same(kind, optimizer):
    changes = {**KINDS[kind], "deepspeed.offload_params": "cpu", "deepspeed.offload_optimizer": optimizer}
    run_ranks(2, trains_like_one_rank, GRIDS["dp2"], changes)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["zero1", "zero3-all"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_offloaded_stategoes_on_bitwise(kind, dtype):
    params = "cpu" if kind == "zero3-all" else "none"
    changes = {"deepspeed.offload_optimizer": "cpu", "deepspeed.offload_params": params, "train.dtype": dtype}
    run_ranks(2, goes_on_bitwise, GRIDS["dp2"], {**KINDS[kind], **changes})


def _offloads_without_a_compiler(folder: str) -> None:
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    os.environ["PATH"] = ""
    changes = {**SPLIT_ALL, "deepspeed.offload_optimizer": "cpu", "deepspeed.offload_params": "cpu"}
    run, groups = settings({"data": 2}, **changes), groups_of(data=2)
    train(make_engine(run, groups), run, groups, 0, 1)
    assert os.listdir(folder) == []


@pytest.mark.dist
def test_offload_calls_no_compiler(tmp_path):
    run_ranks(2, _keep_environment, _offloads_without_a_compiler, str(tmp_path))


def _keep_environment(check: Any, *args: Any) -> None:
    before = dict(os.environ)
    try:
        check(*args)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.dist
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("grid", ["dp4", "tp2dp2"])
def test_a_second_copy_of_the_weights_trains_the_same(grid, dtype):
    if dtype == "fp32":
        run_ranks(4, trains_like_one_rank, GRIDS[grid], HPZ)
    else:
        run_ranks(4, half_is_near_fp32, GRIDS[grid], {**HPZ, "train.dtype": dtype})


@pytest.mark.dist
def test_a_second_copy_is_made_anew_after_loading():
    run_ranks(4, moves_between, GRIDS["dp4"], KINDS["zero1"], HPZ)


def _second_copy_is_of_the_same_shard() -> None:
    import torch.distributed as dist
    from deepspeed.utils import groups as theirs

    make_engine(settings(GRIDS["tp2dp2"], **HPZ), groups_of(**GRIDS["tp2dp2"]))
    mine = dist.get_process_group_ranks(theirs._ZERO_PARAM_INTRA_PARALLEL_GROUP)
    assert mine == ([0, 2] if dist.get_rank() in (0, 2) else [1, 3])


@pytest.mark.dist
def test_a_second_copy_is_shared_by_ranks_of_one_tensor_shard():
    run_ranks(4, _second_copy_is_of_the_same_shard)
