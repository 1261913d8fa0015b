"""DeepSpeed's CPU Adam, where DeepSpeed was installed with it (DS_BUILD_CPU_ADAM=1); nothing is compiled here."""

from __future__ import annotations

import pytest

from megads.launch.preflight.packages import has_op
from tests.parity.layouts import Layout
from tests.ranks import run_ranks

STEPS = 50
OFFLOAD = {"deepspeed.offload_optimizer": "cpu", "deepspeed.param_persistence_threshold": "0"}
LAYOUTS = [
    Layout(dp=2, zero=1, more={"train.micro_batch": "4", **OFFLOAD}),
    Layout("gpt", tp=2, zero=2, more=OFFLOAD),
    Layout(dp=2, zero=3, more={"train.micro_batch": "4", **OFFLOAD}),
    Layout(dp=2, zero=1, more={"train.micro_batch": "4", "train.dtype": "bf16", **OFFLOAD}),
]


def needs_op(test):
    """Leave a test out where DeepSpeed has no op; tests/config/test_optimizers.py has what is refused there."""
    return test if has_op("cpu_adam") else None


@pytest.mark.parametrize("op", ["cpu_adam", "async_io"])
def test_ops_are_found_where_deepspeed_says_they_are(op):
    from deepspeed.git_version_info import installed_ops

    assert has_op(op) is bool(installed_ops.get(op))


def equals_the_library(layout: Layout) -> None:
    from tests.engine.scripted import Scripted, reference

    changes = {"optim.optimizer": "ds.adamw"}
    scripted = Scripted(layout, **changes)
    scripted.train(STEPS)
    dtype = {"train.dtype": layout.more.get("train.dtype", "fp32")}
    for name in ("ds.adamw", "adamw"):
        expected = reference(layout.kind, STEPS, **{"optim.optimizer": name, **dtype})
        worst = max(scripted.differences(expected), key=lambda each: each[1])
        assert worst[1] <= 1e-6, (name, worst)


@needs_op
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_fifty_steps_are_those_of_the_library_and_of_torch(layout):
    run_ranks(layout.ranks, equals_the_library, layout, timeout_s=300)


def goes_on(zero: str) -> None:
    from tests.engine.plain import goes_on_bitwise

    goes_on_bitwise({"data": 2}, {"parallel.zero_stage": zero, "optim.optimizer": "ds.adamw", **OFFLOAD})


@needs_op
@pytest.mark.parametrize("zero", ["1", "3"])
def test_another_engine_goes_on_from_its_state(zero):
    run_ranks(2, goes_on, zero, timeout_s=300)
