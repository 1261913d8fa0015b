"""The time of a step: its lines add up, follow the layout, and stay near an audit of the same model."""

from __future__ import annotations

import time

import pytest

from megads.config.derive import derive
from megads.config.pipeline.actions import actions
from megads.config.pipeline.clock import Costs, simulate
from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.time.constants import fitted
from megads.plan.time.step import case_of, lines_of, step_time

H100 = place_of("h100")
EAGER = {"ENGINE": "deepspeed", "KERNELS": "eager"}
NATIVE = {"NLAYERS": "10", "ENGINE": "native", "KERNELS": "auto"}
IDLE = "idle: first and last micro-batches of the pipeline"


def _run(preset="7B", ranks=1, **env):
    resolved = resolve(preset, env={**EAGER, **env}, machine="generic")
    hosts = -(-ranks // H100.per_host)
    return derive(resolved, num_hosts=hosts, ranks_per_host=ranks // hosts, vocab_size=32_000).run


def _lines(run, ranks=1, parts=1, place=H100):
    return {line.name: 1e3 * line.seconds / parts for line in step_time(run, ranks, place).lines}


def _communication(lines):
    return sum(value for name, value in lines.items() if name.startswith("communication"))


def test_lines_add_up_and_every_kind_has_a_share():
    run = _run(ranks=16, TP="2", PP="2", GRAD_ACC_STEPS="4", NLAYERS="4")
    found = step_time(run, 16, H100)
    kinds = ("compute", "memory", "communication", "idle", "host")
    assert sum(found.share(kind) for kind in kinds) == pytest.approx(1)
    assert all(found.share(kind) > 0 for kind in kinds)
    assert found.tokens_per_s == pytest.approx(found.tokens / 16 / found.step_s)
    assert found.longest()[0].seconds == max(line.seconds for line in found.lines if line.cure)


# By hand, from kernels counted in a profile of the same model: ms per micro-batch of 4,096 tokens, at assumed rates.
AUDIT = {
    8: {"zero, norm and clip of gradients": 1.5, "optimizer": 2.5, "master weights to bf16": 0.5, "all": 112.9},
    1: {"zero, norm and clip of gradients": 11.6, "optimizer": 20.3, "master weights to bf16": 4.4, "all": 149.0},
}
BYTES = {"sum of gradients": 7.3, "activation of the MLP": 5.8, "loss in float32": 1.9, "residual sums": 1.4}
AUDITED_MEMORY = 0.835
"""Share of the bandwidth of memory that the audit assumed."""


@pytest.mark.parametrize("parts", AUDIT)
def test_the_audited_step(parts):
    lines = _lines(_run(NLAYERS="10", GRAD_ACC_STEPS=str(parts)), parts=parts)
    total = AUDIT[parts]["all"]
    for name, milliseconds in {**BYTES, **AUDIT[parts]}.items():
        if name != "all":
            by = AUDITED_MEMORY / fitted().memory
            assert lines[name] == pytest.approx(milliseconds * by, rel=0.03, abs=0.1), name
    assert sum(lines.values()) == pytest.approx(total, rel=0.2)


def test_tensor_ranks_share_the_products_and_send_activations():
    one, two = (_lines(_run(ranks=n, TP=str(n)), n) for n in (1, 2))
    assert 0.5 <= two["matrix products"] / one["matrix products"] < 0.53  # operands are not halved
    assert two["norms"] == one["norms"]
    (name,) = (name for name in two if name.startswith("communication"))
    assert name == "communication, tensor axis of 2, inside a host"
    # 4 x 32 + 2 all-reduces of 4,096 x 4,096 elements in bf16.
    expected = 130 * (2 * 4096**2 / (fitted().links * 450e9) + H100.level(2).latency_s)
    assert two[name] == pytest.approx(1e3 * expected)
    scattered = _lines(_run(ranks=2, TP="2", SCATTER_NORMS="1"), 2)
    assert scattered["norms"] == one["norms"] / 2


def test_a_group_over_hosts_sends_through_the_adapters_of_all_its_ranks_in_a_host():
    def data(tensor, ranks):
        lines = _lines(_run(ranks=ranks, TP=str(tensor), ZERO_STAGE="0"), ranks)
        return next(ms for name, ms in lines.items() if "data axis" in name)

    by = fitted()
    near, far = data(1, 8), data(1, 16)
    # Eight adapters of 50 GB/s, as fast as a link of 450 allows.
    assert far / near == pytest.approx((15 / 16) / (7 / 8) * (450 * by.links) / (400 * by.network), rel=1e-3)
    # Each of eight groups has one adapter.
    assert data(8, 16) == pytest.approx(data(1, 16) / 8 * (1 / 2) / (15 / 16) * 8, rel=0.02)


@pytest.mark.parametrize("parts", [4, 9])
def test_idle_time_of_equal_stages_is_the_clock_s(parts):
    run = _run(ranks=4, PP="4", NLAYERS="16", GRAD_ACC_STEPS=str(parts))
    case = case_of(run, 4, H100)
    works = [(count, work) for count, work in case.works if not (work.stage.has_embedding or work.stage.has_head)]
    assert len(works) == 1
    lines = _lines(run, 4)
    length = simulate(actions("1f1b", 4, 1, parts), Costs()).length
    assert length == 3 * (parts + 3)
    # The slowest stage has the loss; the others wait for it, and it for them once.
    found = {line.name: line.seconds for line in lines_of(case, fitted())}
    assert lines[IDLE] == pytest.approx(1e3 * found[IDLE])
    again = _lines(_run(ranks=4, PP="4", NLAYERS="16", GRAD_ACC_STEPS=str(2 * parts)), 4)
    assert lines[IDLE] == pytest.approx(again[IDLE], rel=0.01)  # per step, not per micro-batch


def test_recomputation_costs_a_forward_pass():
    plain, again = (_lines(_run(RECOMPUTE=how)) for how in ("none", "full"))
    extra = again.pop("recomputation")
    passes = sum(plain[name] for name in ("norms", "residual sums", "activation of the MLP", "rotary positions"))
    layers = _lines(_run(NLAYERS="31"))["matrix products"]
    layers = 32 * (plain["matrix products"] - layers)
    assert extra == pytest.approx(layers / 3 + plain["attention"] / 3.5 + 0.4 * passes, rel=0.01)
    for name in ("matrix products", "attention", "norms", "optimizer"):
        assert again[name] == pytest.approx(plain[name]), name


@pytest.mark.parametrize("preset", ["t5-220M", "bert-345M", "retro-843M"])
def test_other_families_have_a_time(preset):
    found = step_time(_run(preset, KERNELS="auto", ENGINE="native"), 1, H100)
    assert 0.02 < found.mfu_full < 0.7


def test_the_native_engine_passes_over_less_memory():
    ours, theirs = (_lines(_run(GRAD_ACC_STEPS="8", NLAYERS="10", **more)) for more in (NATIVE_ONLY, {}))
    assert ours["matrix products"] == theirs["matrix products"]
    assert ours["optimizer"] == theirs["optimizer"]
    # 6 bytes of the first micro-batch and 10 of the others, where DeepSpeed's are 10 of all; 4 bytes for 16.
    assert ours["sum of gradients"] == pytest.approx(76 / 80 * theirs["sum of gradients"])
    name = "zero, norm and clip of gradients"
    assert ours[name] == pytest.approx(theirs[name] / 4)
    assert ours["attention"] == pytest.approx(theirs["attention"] * 0.32 / 0.5)
    for name in ("norms", "residual sums", "activation of the MLP", "rotary positions", "gaps between kernels"):
        assert ours[name] < 0.75 * theirs[name], name


NATIVE_ONLY = {"ENGINE": "native", "KERNELS": "auto"}


@pytest.mark.parametrize("zero", ["1", "2", "3"])
def test_reductions_of_the_native_engine_hide_behind_products(zero):
    env = {**NATIVE, "ZERO_STAGE": zero, "GRAD_ACC_STEPS": "4", "MICRO_BATCH": "4"}
    exposed = _communication(_lines(_run(ranks=8, **env), 8))
    shown = _communication(_lines(_run(ranks=8, **{**env, "ENGINE": "deepspeed"}), 8))
    assert exposed < 0.5 * shown
    # Of each pass one message of several has nothing to hide behind.
    assert exposed > 0.05 * shown


def test_a_hundred_thousand_ranks_take_milliseconds():
    run = _run("70B", ranks=102_400, TP="8", PP="16", NLAYERS="80", GRAD_ACC_STEPS="80")
    step_time(run, 102_400, H100)
    started = time.process_time()
    for _ in range(5):
        step_time(run, 102_400, H100)
    assert (time.process_time() - started) / 5 < 1.0  # a few ms; the bound is for a loaded machine
