"""What DeepSpeed does its own way: when gradients are reduced and sent, its reports, and gathers in a queue.

That every ZeRO stage trains like one rank: tests/engine/test_zero_stages.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import batches, make_engine, settings, trains_like_one_rank
from tests.engine.test_zero_stages import GRIDS, KINDS, half_is_near_fp32
from tests.ranks import groups_of, run_ranks


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_reducing_while_the_backward_pass_runs(kind):
    run_ranks(2, trains_like_one_rank, GRIDS["dp2"], {**KINDS[kind], "parallel.ddp_impl": "torch"})


def _is_taken_where_the_remark_says() -> None:
    from megads.config.deepspeed.dictionary import is_bf16_optimizer

    for changes in (
        {"train.dtype": "bf16", "parallel.zero_stage": "0"},
        {"train.dtype": "bf16", "parallel.zero_stage": "1"},
        {"train.dtype": "bf16", "parallel.zero_stage": "1", "deepspeed.grad_accum_dtype": "bf16"},
        {"train.dtype": "bf16", "parallel.zero_stage": "2"},
        {"train.dtype": "fp32", "parallel.zero_stage": "1"},
    ):
        run = settings({"data": 2}, **changes, **{"parallel.ddp_impl": "torch"})
        optimizer = make_engine(run, groups_of(data=2)).engine.optimizer
        assert (type(optimizer).__name__ == "BF16_Optimizer") == is_bf16_optimizer(run), changes
        assert is_bf16_optimizer(run) == (not getattr(optimizer, "overlap_comm", False)), changes


@pytest.mark.dist
def test_the_optimizer_that_cannot_overlap_is_known_before_the_start():
    run_ranks(2, _is_taken_where_the_remark_says)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_reducing_to_every_rank(kind):
    run_ranks(2, trains_like_one_rank, GRIDS["dp2"], {**KINDS[kind], "deepspeed.reduce_scatter": "false"})


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["zero0", "zero1", "zero3"])
def test_deepspeeds_own_reports_change_nothing(kind):
    reports = {
        "deepspeed.comms_logger": "true",
        "deepspeed.wall_clock_breakdown": "true",
        "deepspeed.steps_per_print": "2",
    }
    run_ranks(2, trains_like_one_rank, GRIDS["dp2"], {**KINDS[kind], **reports})


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3-all"])
def test_gradients_can_be_sent_in_bf16(kind):
    changes = {**KINDS[kind], "train.dtype": "bf16", "deepspeed.communication_data_type": "bf16"}
    run_ranks(2, half_is_near_fp32, GRIDS["dp2"], changes)


class _Queue:
    """Stands for the device's queue of all-gathers; notes the weights at each of its waits."""

    def __init__(self) -> None:
        self.optimizer: Any = None
        self.seen: list[float] = []

    def wait_stream(self, other: object) -> None:
        self.seen.append(float(sum(flat.double().sum() for flat in self.optimizer.fp16_partitioned_groups_flat)))


def _gathers_wait_for_changes() -> None:
    from megads.engine.deepspeed.zero import changes_before_gathers

    run, groups = settings({"data": 2}, **{"parallel.zero_stage": "3"}), groups_of(data=2)
    engine = make_engine(run, groups)
    optimizer, queue = engine.engine.optimizer, _Queue()
    queue.optimizer = optimizer
    optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream = queue
    engine.state.weights_changed = changes_before_gathers(optimizer)

    def now() -> float:
        return float(sum(flat.double().sum() for flat in optimizer.fp16_partitioned_groups_flat))

    for step in range(2):
        engine.train_step(batches(run, step, groups.data_rank), 1e-2)
        assert queue.seen[step:] == [now()]
    for shard in engine.state.owned_shards():
        shard.tensors["weight"].mul_(2)
    engine.state.sync_from_masters()
    assert queue.seen[2:] == [now()]
    assert len(set(queue.seen)) == 3


@pytest.mark.dist
def test_gathers_of_a_queue_of_their_own_wait_for_changes_of_the_weights():
    run_ranks(2, _gathers_wait_for_changes)
