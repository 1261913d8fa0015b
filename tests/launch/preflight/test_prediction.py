"""What is predicted of a run before it starts, and by what."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.launch.preflight.prediction import predict_run
from megads.launch.schedulers.allocation import Allocation
from megads.plan.memory import estimate
from megads.plan.prediction import Prediction
from tests.monitor.test_measured import folder_of

ROOT = Path(__file__).parents[3]
HERE = Allocation("none", ("here",), 1)


def run_on(machine: str, ranks: int = 1, **env: str) -> RunConfig:
    given = {"NLAYERS": "8", "HIDDEN": "1024", "HEADS": "8", "SEQ": "1024", "TRAIN_ITERS": "10", **env}
    resolved = resolve(env=given, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000).run


def predicted(run: RunConfig, allocation: Allocation = HERE, **env: str) -> Prediction:
    return predict_run(run, allocation, estimate(run, allocation.world_size), env, ROOT)


def test_a_machine_whose_device_is_known_has_a_step():
    for machine in ("aurora", "polaris", "frontier"):
        found = predicted(run_on(machine, 4), Allocation("none", ("here",), 4))
        assert found.step_s > 0
        assert f" predicted ({machine}" in found.line()
        assert found.memory_bytes == estimate(run_on(machine, 4), 4).total


def test_what_is_not_known_is_not_made_up():
    for run, env in (
        (run_on("cpu"), {}),
        (run_on("generic"), {}),
        (run_on("aurora"), {"MEGADS_DEVICE": "cpu"}),
        (run_on("aurora", EVALUATE_ONLY="1", LOAD="x"), {}),
    ):
        found = predicted(run, **env)
        assert (found.step_s, found.line()) == (0.0, "")
        assert found.memory_bytes > 0


def test_an_anchor_gives_a_cpu_its_step(tmp_path):
    anchor = folder_of(tmp_path, device="cpu")
    found = predicted(run_on("cpu", PLAN_ANCHOR=str(anchor)))
    assert found.step_s > 0
    assert f" predicted (anchored on {anchor}), " in found.line()


def test_an_anchor_that_cannot_correct_is_refused_in_one_line(tmp_path):
    on_cpu, on_h100 = folder_of(tmp_path / "a", device="cpu"), folder_of(tmp_path / "b")

    def refused(run: RunConfig, problem: str, ranks: int = 1, **env: str) -> None:
        with pytest.raises(ConfigError, match=problem) as found:
            predicted(run, Allocation("none", ("here",), ranks), **env)
        assert "\n" not in str(found.value)

    refused(run_on("cpu", PLAN_ANCHOR=str(on_h100)), "measured on NVIDIA H100 80GB HBM3, and this run is on CPUs")
    refused(run_on("aurora", PLAN_ANCHOR=str(on_h100)), "was measured on NVIDIA H100 80GB HBM3, not on Intel")
    refused(run_on("cpu", 2, PLAN_ANCHOR=str(on_cpu)), "measured with 1 rank on a host, which share", ranks=2)
    refused(run_on("cpu", PLAN_ANCHOR=str(tmp_path / "none")), "not found; pass a run folder")
