"""Numbers that come to the host together are the same bits; what a step waits for: tests/simgpu/test_host_waits.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megads.engine.deepspeed import host_read
from megads.engine.deepspeed.host_read import on_host
from tests.engine.plain import batches, make_engine, rate, settings
from tests.ranks import groups_of, run_ranks


def test_numbers_of_the_host_stay():
    one, two = torch.tensor([1.5]), torch.tensor(2.0, dtype=torch.float64)
    found = on_host([one, two])
    assert [(float(each), each.dtype, each.shape) for each in found] == [
        (1.5, torch.float32, ()),
        (2.0, torch.float64, ()),
    ]


KINDS = [
    {"train.dtype": "bf16", "parallel.zero_stage": "1"},
    {"train.dtype": "fp16", "parallel.zero_stage": "2", "optim.initial_loss_scale_power": "8"},
    {"parallel.zero_stage": "1"},
    {"parallel.zero_stage": "3"},
]


def _numbers_are_deepspeeds_own(changes: dict[str, str]) -> None:
    """Losses, norms, skips and weights are the same bits as without the one read, also around a bad gradient."""
    run, groups = settings({"data": 2}, **changes), groups_of(data=2)

    def results(plainly: bool) -> list[Any]:
        own = host_read.HostRead.__init__
        if plainly:

            def do_nothing(self: Any, optimizer: Any) -> None:
                self.optimizer, self._others, self._bad = optimizer, [], None

            host_read.HostRead.__init__ = do_nothing  # type: ignore[method-assign]
        try:
            engine = make_engine(run, groups)
        finally:
            host_read.HostRead.__init__ = own  # type: ignore[method-assign]
        found: list[Any] = []
        for step in range(4):
            weight = engine.module.final_norm.weight
            spoils = step == 1 and groups.rank == 1
            handle = weight.register_hook(lambda grad: grad * torch.nan) if spoils else None
            result = engine.train_step(batches(run, step, groups.data_rank), rate(step))
            if handle is not None:
                handle.remove()
            found.append((float(result.loss), result.grad_norm, result.skipped, result.loss_scale))
        masters = [(s.name, s.tensors["weight"].clone()) for s in engine.state.owned_shards()]
        return [found, masters]

    (ours, weights), (plain, others) = results(False), results(True)
    assert ours == plain
    assert [skipped for _, _, skipped, _ in ours] == [False, True, False, False]
    for (name, one), (_, other) in zip(weights, others, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.dist
@pytest.mark.parametrize("changes", KINDS, ids=["bf16-zero1", "fp16-zero2", "fp32-zero1", "fp32-zero3"])
def test_a_step_gives_the_same_bits(changes):
    run_ranks(2, _numbers_are_deepspeeds_own, changes)


def _a_gradient_in_no_norm_counts() -> None:
    """A norm's weight counts on the first tensor-parallel rank only; in fp16 the step is skipped on both."""
    run, groups = settings({"tensor": 2}, **KINDS[1]), groups_of(tensor=2)
    engine = make_engine(run, groups)
    weight = engine.module.final_norm.weight
    if groups.tensor_rank == 1:
        weight.register_hook(lambda grad: grad * torch.inf)
    assert engine.train_step(batches(run, 0, 0), rate(0)).skipped


@pytest.mark.dist
def test_a_gradient_that_is_not_finite_in_no_norm_counts():
    run_ranks(2, _a_gradient_in_no_norm_counts)
