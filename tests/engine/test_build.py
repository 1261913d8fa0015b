"""Gradients are summed and sent in the types that the settings name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from megads.errors import ConfigError
from tests.config.advice import check
from tests.engine.plain import batches, make_engine, rate, settings
from tests.ranks import groups_of, run_ranks

BF16 = {"train.dtype": "bf16", "optim.clip_grad": "0"}


def _sum_of_micro_batches(run: Any, groups: Any, dtype: Any) -> float:
    """Return the norm of the step's gradient, whose parts of single micro-batches are summed in ``dtype``."""

    from megads.models.build import build_model

    model = build_model(run, groups).bfloat16()
    parts = batches(run, 0, 0)
    sums: list[Any] = []
    for part in parts:
        (model(part[:, :-1], part[:, 1:]) / len(parts)).backward()
        mine = [p.grad.to(dtype) for p in model.parameters()]
        sums = [a + b for a, b in zip(sums, mine, strict=True)] if sums else mine
        model.zero_grad()
    return math.sqrt(sum(float(each.double().square().sum()) for each in sums))


def _sums_in_the_type(stage: str) -> None:
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups

    groups = Groups(Grid(), 0)
    norms = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        changes = {**BF16, "parallel.zero_stage": stage, "deepspeed.grad_accum_dtype": name}
        run = settings({}, **changes)
        found = make_engine(run, groups).train_step(batches(run, 0, 0), rate(0)).grad_norm
        norms[name] = found
        # The norm itself is computed in the type of the sum.
        tolerance = 1e-6 if name == "fp32" else 4e-3
        assert found == pytest.approx(_sum_of_micro_batches(run, groups, dtype), rel=tolerance)
    assert norms["fp32"] != norms["bf16"]


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_gradients_are_summed_in_grad_accum_dtype(stage):
    run_ranks(1, _sums_in_the_type, stage, timeout_s=180)


def _bytes_of_a_gradient(grid: dict[str, int], changes: dict[str, str], expected: int) -> None:
    from tests.parity.recorder import Traffic

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    with Traffic(groups) as traffic:
        engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    weights = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    reduced = {"all-reduce", "reduce", "reduce-scatter"}
    big = [key for key in traffic.calls if key[1] in reduced and traffic.elements[key] >= weights]
    assert [axis for axis, _ in big] == ["data"]
    (key,) = big
    # ZeRO 2 and 3 keep no whole gradient, so that they send that of every micro-batch.
    times = run.train.grad_acc_steps if run.parallel.zero_stage > 1 else 1
    # Beside gradients a few single numbers are summed, and ZeRO fills up its partitions.
    assert traffic.bytes[key] / traffic.elements[key] == pytest.approx(expected, rel=0.01)
    assert traffic.elements[key] == pytest.approx(times * weights, rel=0.02)


SENT: dict[str, tuple[dict[str, int], dict[str, str], int]] = {
    "zero0-fp32": ({"data": 2}, {"parallel.zero_stage": "0"}, 4),
    "zero0-bf16": ({"data": 2}, {"parallel.zero_stage": "0", "deepspeed.communication_data_type": "bf16"}, 2),
    "zero1-bf16-in-fp32": ({"data": 2}, {**BF16, "parallel.zero_stage": "1"}, 4),
    "zero1-bf16": ({"data": 2}, {**BF16, "deepspeed.communication_data_type": "bf16"}, 2),
    "zero2-bf16-in-fp32": ({"data": 2}, {**BF16, "parallel.zero_stage": "2"}, 4),
    "zero3-bf16": (
        {"data": 2},
        {**BF16, "parallel.zero_stage": "3", "deepspeed.communication_data_type": "bf16"},
        2,
    ),
    "zero3-bf16-in-fp32": ({"data": 2}, {**BF16, "parallel.zero_stage": "3"}, 4),
    "pp2-bf16": ({"pipe": 2, "data": 2}, {**BF16, "deepspeed.communication_data_type": "bf16"}, 2),
}


@pytest.mark.dist
@pytest.mark.parametrize("case", SENT)
def test_gradients_are_sent_in_communication_data_type(case):
    grid, changes, expected = SENT[case]
    run_ranks(math.prod(grid.values()), _bytes_of_a_gradient, grid, changes, expected, timeout_s=180)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"deepspeed.grad_accum_dtype": "bf16"}, "GRAD_ACCUM_DTYPE=bf16 cannot sum gradients of DTYPE=fp32"),
        ({**BF16, "deepspeed.grad_accum_dtype": "fp16"}, "GRAD_ACCUM_DTYPE=fp16 cannot sum gradients of DTYPE=bf16"),
        ({**BF16, "deepspeed.communication_data_type": "fp16"}, "COMMUNICATION_DATA_TYPE=fp16 loses gradients"),
    ],
)
def test_types_that_can_not_hold_gradients_are_refused(changes, told):
    with pytest.raises(ConfigError) as caught:
        check(settings({}, **changes), 1)
    assert told in str(caught.value)
