"""The lines of a step's roofline: an audit's table, and how they follow the layout."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.plan.accelerators import ACCELERATORS
from megads.plan.roofline import roofline

H100, PEAK = ACCELERATORS["h100"], 989.0


def _run(preset="7B", ranks=1, **env):
    resolved = resolve(preset, env={"ENGINE": "deepspeed", "KERNELS": "eager", **env}, machine="generic")
    hosts = -(-ranks // H100.per_host)
    return derive(resolved, num_hosts=hosts, ranks_per_host=ranks // hosts, vocab_size=32_000).run


def _lines(found, parts=1):
    return {line.name: 1e3 * line.seconds / parts for line in found.lines}


# By hand, from kernels counted in a profile of the same model: ms per micro-batch of 4,096 tokens.
AUDIT = {
    8: {"zero, norm and clip of gradients": 1.5, "optimizer": 2.5, "master weights to bf16": 0.5, "all": 112.9},
    1: {"zero, norm and clip of gradients": 11.6, "optimizer": 20.3, "master weights to bf16": 4.4, "all": 149.0},
}
BOTH = {
    "matrix products": 71.7,
    "attention": 15.3,
    "sum of gradients": 7.3,
    "activation of the MLP": 5.8,
    "loss in float32": 1.9,
    "residual sums": 1.4,
}


@pytest.mark.parametrize("parts", AUDIT)
def test_the_audited_step(parts):
    found = roofline(_run(NLAYERS="10", GRAD_ACC_STEPS=str(parts)), 1, H100, PEAK)
    lines = _lines(found, parts) | {"all": 1e3 * found.step_s / parts}
    for name, milliseconds in {**BOTH, **AUDIT[parts]}.items():
        assert lines[name] == pytest.approx(milliseconds, rel=0.02, abs=0.06), name
    full, causal = {8: (0.49, 0.46), 1: (0.37, 0.345)}[parts]
    assert found.mfu_full == pytest.approx(full, abs=0.005)
    assert found.mfu_causal == pytest.approx(causal, abs=0.005)
    assert found.tokens_per_s == pytest.approx(parts * 4096 / found.step_s)


def test_tensor_ranks_share_the_products_and_talk():
    one, two = (_lines(roofline(_run(ranks=n, TP=str(n)), n, H100, PEAK)) for n in (1, 2))
    assert two["matrix products"] == pytest.approx(one["matrix products"] / 2)
    assert two["norms"] == one["norms"]
    (name,) = (name for name in two if name.startswith("communication"))
    assert name == "communication, tensor axis of 2, inside a host"
    # 4 x 32 + 2 all-reduces of 4,096 x 4,096 numbers in bf16, at 80 % of 450 GB/s.
    assert two[name] == pytest.approx(1e3 * 130 * 2 * 4096**2 / (0.8 * 450e9))
    scattered = _lines(roofline(_run(ranks=2, TP="2", SCATTER_NORMS="1"), 2, H100, PEAK))
    assert scattered["norms"] == one["norms"] / 2


def test_a_group_beyond_a_host_has_the_network():
    near, far = (_lines(roofline(_run(ranks=n), n, H100, PEAK)) for n in (8, 16))
    (a,), (b,) = ([ms for name, ms in each.items() if "data axis" in name] for each in (near, far))
    assert b / a == pytest.approx((15 / 16) / (7 / 8) * 450 / 50)


def test_a_pipeline_waits_for_its_first_micro_batches():
    runs = [_run(ranks=2, PP="2", GRAD_ACC_STEPS=str(parts)) for parts in (2, 8)]
    idle = [_lines(roofline(run, 2, H100, PEAK))["idle: first and last micro-batches of the pipeline"] for run in runs]
    assert idle[0] == pytest.approx(idle[1], rel=1e-6)  # one micro-batch of the slowest stage


def test_recomputation_costs_a_forward_pass():
    plain, again = (_lines(roofline(_run(RECOMPUTE=how), 1, H100, PEAK)) for how in ("none", "full"))
    extra = again.pop("recomputation")
    assert again == plain
    head = 6 * 4096 * 32_000 * 4096 / (0.66 * PEAK * 1e9)
    assert extra == pytest.approx((plain["matrix products"] - head) / 3 + plain["attention"] / 3.5, rel=1e-6)


def test_an_encoder_with_a_decoder_is_refused():
    with pytest.raises(ConfigError, match="not t5; use another preset"):
        roofline(_run("t5-220M"), 1, H100, PEAK)


NATIVE = {"NLAYERS": "10", "ENGINE": "native", "KERNELS": "auto"}


def test_the_native_engine_passes_over_less_memory():
    ours, theirs = _run(GRAD_ACC_STEPS="8", **NATIVE), _run(GRAD_ACC_STEPS="8", NLAYERS="10")
    ours, theirs = (_lines(roofline(run, 1, H100, PEAK)) for run in (ours, theirs))
    assert ours["matrix products"] == theirs["matrix products"]
    assert ours["optimizer"] == theirs["optimizer"]
    # 6 bytes of the first micro-batch and 10 of the others, where DeepSpeed's are 10 of all; 4 bytes for 16.
    assert ours["sum of gradients"] == pytest.approx(76 / 80 * theirs["sum of gradients"])
    name = "zero, norm and clip of gradients"
    assert ours[name] == pytest.approx(theirs[name] / 4)
    assert ours["attention"] == pytest.approx(theirs["attention"] * 0.32 / 0.5)
    for name in ("norms", "residual sums", "activation of the MLP", "rotary positions", "gaps between kernels"):
        assert ours[name] < 0.75 * theirs[name], name


def test_large_micro_batches_reach_the_goal_of_the_native_engine():
    found = roofline(_run(MICRO_BATCH="4", GRAD_ACC_STEPS="32", **NATIVE), 1, H100, PEAK)
    assert 0.57 <= found.mfu_causal < 0.6
    assert roofline(_run(GRAD_ACC_STEPS="8", **NATIVE), 1, H100, PEAK).mfu_causal < 0.53


@pytest.mark.parametrize("zero", ["1", "2", "3"])
def test_reductions_of_the_native_engine_hide_behind_products(zero):
    env = {**NATIVE, "ZERO_STAGE": zero, "GRAD_ACC_STEPS": "4", "MICRO_BATCH": "4"}
    exposed = _communication(_run(ranks=8, **env))
    shown = _communication(_run(ranks=8, **{**env, "ENGINE": "deepspeed"}))
    assert exposed < 0.4 * shown
    # Of each pass one message of several has nothing to hide behind.
    assert exposed > 0.05 * shown
    assert _communication(_run(ranks=64, **env)) > exposed


def _communication(run):
    lines = _lines(roofline(run, run.parallel.data, H100, PEAK))
    return sum(value for name, value in lines.items() if name.startswith("communication"))
