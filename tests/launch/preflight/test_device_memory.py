"""Which memory a run is checked against where a machine's hosts differ."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.launch.preflight import device_memory as found
from megads.launch.preflight.device_memory import (
    DeviceMemory,
    check_here,
    check_host_memory,
    constraint_of,
    device_memory,
)
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation
from megads.launch.submit.job_script import JobOptions
from megads.launch.submit.training import prepare_submission
from megads.plan.memory import GIB, estimate, host_bytes
from tests.engine.plain import settings

ROOT = Path(__file__).parents[3]
PERLMUTTER = read_machine("perlmutter", ROOT).facts
SMALLEST = DeviceMemory(39.4, "its smallest; hbm80g 79.1")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", SMALLEST),
        ("gpu", SMALLEST),
        ("gpu&hbm40g", SMALLEST),
        ("gpu&hbm80g", DeviceMemory(79.1, "asked for by gpu&hbm80g")),
        ("gpu&hbm80g|gpu&hbm40g", SMALLEST),  # either may come
        ("[hbm80g*2|hbm80g]", DeviceMemory(79.1, "asked for by [hbm80g*2|hbm80g]")),
    ],
)
def test_the_constraint_decides_and_without_one_the_smallest(asked, expected):
    assert device_memory(PERLMUTTER, asked) == expected


@pytest.mark.parametrize(("measured", "gib"), [(80.0, 79.1), (40.0, 39.4), (141.0, 79.1), (24.0, 24.0)])
def test_what_a_host_says_of_itself_counts_more(measured, gib):
    assert device_memory(PERLMUTTER, "gpu&hbm80g", measured) == DeviceMemory(gib, "as on this host")


@pytest.mark.parametrize("machine", ["polaris", "aurora", "generic"])
def test_where_all_devices_are_equal_nothing_is_said(machine):
    facts = read_machine(machine, ROOT).facts
    assert device_memory(facts, "gpu", 80.0) == DeviceMemory(facts.device_memory_gib)


@pytest.mark.parametrize(
    ("options", "env", "constraint"),
    [
        ((), {}, "gpu"),
        (("-C", "gpu&hbm80g"), {}, "gpu&hbm80g"),
        (("-Chbm80g", "--exclusive"), {}, "hbm80g"),
        (("--constraint=a", "--constraint", "b"), {}, "b"),
        (("-C", "a"), {"SBATCH_CONSTRAINT": "b"}, "b"),  # sbatch prefers its variable to the script
    ],
)
def test_the_constraint_of_a_job(options, env, constraint):
    assert constraint_of(options, env, "gpu") == constraint


def test_nvidia_smi_is_asked_only_where_it_decides(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 81920\necho 40960\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    given = []
    monkeypatch.setattr(found, "check_device", lambda *args, kind: given.append((args[3], kind)) or "")
    monkeypatch.setattr(found, "is_here", lambda host, env: host == "here")
    checked: list[str] = []
    monkeypatch.setattr(
        found, "check_host_memory", lambda run, allocation, available: checked.append(allocation.hosts[0])
    )
    run = type("Run", (), {"machine": "perlmutter"})()
    here, there = Allocation("slurm", ("here", "n2"), 4), Allocation("slurm", ("n1", "n2"), 4)
    check_here(run, here, env, PERLMUTTER, None)
    check_here(run, there, env, PERLMUTTER, None)
    check_here(run, here, env, read_machine("polaris", ROOT).facts, None)
    check_here(run, here, {"PATH": "/nowhere"}, PERLMUTTER, None)
    assert given == [(39.4, "as on this host"), (39.4, SMALLEST.kind), (39.4, ""), (39.4, SMALLEST.kind)]
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert checked == ["here"] * 3  # of another host nothing is known


def test_a_job_is_checked_before_it_is_submitted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {"MACHINE": "perlmutter", "WALLTIME": "1:00:00"}
    ask = TrainRequest("7B", (), env, "login01", ROOT, sys.executable, ("train", "--preset", "7B"))
    wish = JobOptions(nodes=1, account="X")
    with pytest.raises(ConfigError) as refused:
        prepare_submission(ask, wish, tmp_path)
    said = str(refused.value)
    assert said.startswith("machine perlmutter has 39.4 GiB (its smallest; hbm80g 79.1) per device, and each rank")
    assert "TP=4 or PP=4" in said
    assert said.endswith("FORCE=1 starts anyway")
    large = prepare_submission(ask, replace(wish, options=("-C", "gpu&hbm80g")), tmp_path)
    assert not [note for note in large.resolved.notes if note.startswith("machine perlmutter has") and "39.4" in note]
    forced = prepare_submission(replace(ask, env={**env, "FORCE": "1"}), wish, tmp_path)
    assert "#SBATCH --constraint=gpu\n" in forced.text
    cpu = prepare_submission(replace(ask, env={**env, "MEGADS_DEVICE": "cpu"}), wish, tmp_path)
    assert not [note for note in cpu.resolved.notes if note.startswith("a device of")]


def test_ranks_that_need_more_than_their_host_has_are_refused():
    run = settings({"data": 4}, **{"train.dtype": "bf16", "deepspeed.offload_optimizer": "cpu"})
    four = Allocation("none", ("h",), 4)
    needed = host_bytes(run, 4)
    check_host_memory(run, four, 4 * needed)
    with pytest.raises(ConfigError) as caught:
        check_host_memory(run, four, 4 * needed - GIB // 4)
    assert str(caught.value) == (
        f"this host has {4 * needed / GIB - 0.25:.2f} GiB of host memory for 4 ranks that need about "
        f"{needed / GIB:.2f} GiB each; use OFFLOAD_OPTIMIZER=none or more hosts; FORCE=1 starts anyway"
    )
    check_host_memory(run.model_copy(update={"train": run.train.model_copy(update={"force": True})}), four, 0)


def test_weights_on_their_way_to_devices_take_no_memory_of_the_host():
    """7B on 12 ranks took 12 x 28 GB where each rank built it on the CPU."""
    run = settings(
        {"data": 12},
        **{
            "model.hidden_size": "4096",
            "model.num_layers": "32",
            "train.dtype": "bf16",
            "train.global_batch": "24",
            "train.grad_acc_steps": "1",
            "checkpoint.in_background": "false",
        },
    )
    assert estimate(run, 12).weights > 10 * GIB
    assert host_bytes(run, 12) < 1.5 * GIB
