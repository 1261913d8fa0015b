"""Delays of known length, put where they hurt, are reported under the right name; timing changes no number."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, contextmanager

import pytest

from tests.engine.plain import batches, make_engine, rate, settings, working_weights
from tests.ranks import groups_of, run_ranks

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.03, 0.05, 0.07
SLOW = 1  # the rank that is late

LAYOUTS = {
    "dp2-zero0": ({"data": 2}, {"parallel.zero_stage": "0"}),
    "dp2-zero1": ({"data": 2}, {"parallel.zero_stage": "1"}),
    "dp2-zero2": ({"data": 2}, {"parallel.zero_stage": "2"}),
    "dp2-zero3": ({"data": 2}, {"parallel.zero_stage": "3"}),
    "dp2-bf16": ({"data": 2}, {"train.dtype": "bf16"}),
    "dp2-zero2-torch": ({"data": 2}, {"parallel.zero_stage": "2", "parallel.ddp_impl": "torch"}),
    "dp2-zero3-torch": ({"data": 2}, {"parallel.zero_stage": "3", "parallel.ddp_impl": "torch"}),
    "tp2": ({"tensor": 2}, {}),
    "tp2-scatter": ({"tensor": 2}, {"parallel.scatter_norms": "1"}),
    "sp2": ({"seq": 2}, {}),
    "pp2": ({"pipe": 2}, {}),
    "pp2-tied": ({"pipe": 2}, {"model.tied_embeddings": "1", "parallel.zero_stage": "0"}),
    "dp2-recompute": ({"data": 2}, {"recompute.granularity": "full", "recompute.method": "uniform"}),
}
LONG = ("dp2-zero2", "dp2-zero3-torch", "tp2-scatter", "pp2")


@contextmanager
def _delays(engine):
    """Have every forward and backward pass of a layer, and every call of the optimizer, take longer.

    Yields a list that grows by one at every call of the optimizer: ZeRO makes one for each parameter group.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    calls = []

    def late_backward(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda grad: time.sleep(BACKWARD_S))

    def late_optimizer(*rest):
        calls.append(1)
        time.sleep(OPTIMIZER_S)

    layer = next(iter(engine.module.layers.values()))
    with ExitStack() as stack:
        stack.callback(layer.register_forward_pre_hook(lambda *rest: time.sleep(FORWARD_S)).remove)
        stack.callback(layer.register_forward_hook(late_backward).remove)
        stack.callback(register_optimizer_step_pre_hook(late_optimizer).remove)
        yield calls


def _timed_steps(engine, run, groups, count):
    from megads.device.timeline import HostTimeline
    from megads.timing.step_times import StepClock

    clock, found = StepClock(HostTimeline()), []
    for step in range(count):
        parts = batches(run, step, groups.data_rank)
        started = time.perf_counter()
        with clock.running():
            result = engine.train_step(parts, rate(step))
        took = time.perf_counter() - started
        assert math.isfinite(float(result.loss))
        times = clock.read(took, 0.0).seconds
        assert sum(times.values()) == pytest.approx(took, abs=1e-9)
        assert all(seconds >= 0 for seconds in times.values()), times
        found.append(times)
    # Whatever else the host does only adds to work, and takes from waiting.
    least = {name: min(times[name] for times in found) for name in found[0]}
    return {**least, "communication": max(times["communication"] for times in found)}


def _delays_are_told(grid, changes) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    count, steps = run.train.grad_acc_steps, 3
    quick = _timed_steps(engine, run, groups, steps)
    calls = [1] * steps * (1 if run.parallel.zero_stage == 0 or run.train.dtype == "bf16" else 2)
    with ExitStack() as stack:
        if groups.rank == SLOW:
            calls = stack.enter_context(_delays(engine))
        slow = _timed_steps(engine, run, groups, steps)
    own = {"forward": FORWARD_S * count, "backward": BACKWARD_S * count, "optimizer": OPTIMIZER_S * len(calls) / steps}
    if run.recompute.granularity == "full":
        own["backward"] += FORWARD_S * count
    limit = FORWARD_S * count / 3
    for name, delay in own.items():
        more = slow[name] - quick[name]
        if groups.rank == SLOW:
            assert slow[name] >= delay, (name, slow, quick)
        assert more < (delay if groups.rank == SLOW else 0) + limit, (name, slow, quick)
    if groups.rank != SLOW:
        # Only ranks that share an optimizer wait for each other's, in the same step; stages compute in parallel.
        waited = own["backward"]
        waited += own["forward"] if "pipe" not in grid else 0
        waited += own["optimizer"] if {"data", "seq"} & set(grid) else 0
        assert slow["communication"] >= waited, (slow, quick)
    assert slow["other"] < limit


@pytest.mark.dist
@pytest.mark.alone
@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=pytest.mark.slow if each in LONG else ()) for each in LAYOUTS]
)
def test_delays_of_one_rank_are_its_own_work_and_the_other_ranks_wait(layout):
    grid, changes = LAYOUTS[layout]
    run_ranks(math.prod(grid.values()), _delays_are_told, grid, changes)


def _changes_no_number(grid, changes) -> None:
    import torch

    from megads.device.timeline import HostTimeline
    from megads.timing.step_times import StepClock

    run, groups = settings(grid, **changes), groups_of(**grid)
    clock = StepClock(HostTimeline())
    engines = [make_engine(run, groups) for _ in range(2)]
    for step in range(3):
        parts = batches(run, step, groups.data_rank)
        with clock.running():
            timed = engines[0].train_step(parts, rate(step))
        plain = engines[1].train_step(parts, rate(step))
        assert float(timed.loss) == float(plain.loss)
        assert timed.grad_norm == plain.grad_norm
    assert all(map(torch.equal, *(working_weights(engine) for engine in engines)))


@pytest.mark.dist
@pytest.mark.parametrize("layout", ["dp2-zero1", "dp2-zero3", "pp2"])
def test_timing_changes_no_number(layout):
    grid, changes = LAYOUTS[layout]
    run_ranks(math.prod(grid.values()), _changes_no_number, grid, changes)


def _skipped(grid, changes) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    _timed_steps(engine, run, groups, 1)
    hook = next(engine.module.parameters()).register_hook(lambda grad: grad * float("nan"))
    with _delays(engine) as calls:
        times = _timed_steps(engine, run, groups, 1)
    hook.remove()
    assert engine.state.scalars()["skipped_steps"] == 1
    assert times["backward"] >= BACKWARD_S * run.train.grad_acc_steps
    assert not calls


@pytest.mark.dist
@pytest.mark.parametrize("zero", ["0", "1"])
def test_a_skipped_step_is_told_like_others(zero):
    run_ranks(2, _skipped, {"data": 2}, {"parallel.zero_stage": zero})


def _ramp(grid, changes) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    from megads.device.timeline import HostTimeline
    from megads.timing.step_times import StepClock

    clock = StepClock(HostTimeline())
    with _delays(engine):
        found = []
        for count in (1, 1, 1, 1, 2):
            parts = batches(run, 0, groups.data_rank)[:count]
            started = time.perf_counter()
            with clock.running():
                engine.train_step(parts, rate(0))
            found.append(clock.read(time.perf_counter() - started, 0.0).seconds)
    for name, delay in (("forward", FORWARD_S), ("backward", BACKWARD_S)):
        *ones, two = (times[name] for times in found)
        # What else the host does only adds to one of them.
        assert delay <= min(ones) < 2 * delay + 0.05
        assert 2 * delay <= two


@pytest.mark.dist
def test_a_step_of_more_micro_batches_has_more_passes():
    run_ranks(2, _ramp, {"data": 2}, {})


def _uses_the_groups_that_exist() -> None:
    import deepspeed
    from deepspeed.comm import comm

    from megads.engine.deepspeed.package import import_deepspeed

    before, accelerator = comm.cdb, deepspeed.get_accelerator()
    name = accelerator.communication_backend_name()
    comm.cdb, accelerator._communication_backend_name = None, "ccl"
    try:
        import_deepspeed()
        deepspeed.comm.init_distributed(dist_init_required=False)
        assert comm.cdb.name == "torch"
        assert comm.cdb.get_world_size() == 2
    finally:
        comm.cdb, accelerator._communication_backend_name = before, name


@pytest.mark.dist
def test_installed_bindings_of_oneccl_do_not_replace_the_backend():
    """Where they can be imported, DeepSpeed's answer for a CPU is ccl, and it would compile an oneCCL of its own."""
    run_ranks(2, _uses_the_groups_that_exist)
