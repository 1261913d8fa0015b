"""What a host cannot do is reported before a rank finds out."""

from __future__ import annotations

import ctypes.util
import os

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import DeviceError, LaunchError
from megads.launch.preflight import capabilities
from megads.launch.preflight.capabilities import backend_note, check_host, check_kernels

NVME = {"ZERO_STAGE": "3", "OFFLOAD_OPTIMIZER": "nvme"}
ENV = {"MEGADS_DEVICE": "cpu", "PATH": os.environ["PATH"]}


def _run(env: dict[str, str]) -> RunConfig:
    return derive(resolve("tiny", env=env, machine="generic"), num_hosts=1, ranks_per_host=2, vocab_size=500).run


def test_nvme_needs_a_folder(tmp_path):
    run = _run({**NVME, "NVME_PATH": str(tmp_path / "none")})
    with pytest.raises(LaunchError, match=r"OFFLOAD_OPTIMIZER=nvme: NVME_PATH=.*none is not a folder.*=cpu"):
        check_host(run, ENV)


def test_nvme_needs_libaio(tmp_path, monkeypatch):
    monkeypatch.setattr(capabilities, "has_op", lambda op: False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    run = _run({**NVME, "OFFLOAD_PARAMS": "nvme", "NVME_PATH": str(tmp_path)})
    with pytest.raises(LaunchError, match="libaio is not on this host") as problem:
        check_host(run, ENV)
    assert "use OFFLOAD_OPTIMIZER=cpu OFFLOAD_PARAMS=cpu" in str(problem.value)


def test_nvme_needs_what_builds_the_op(tmp_path, monkeypatch):
    monkeypatch.setattr(capabilities, "has_op", lambda op: False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libaio.so.1")
    run = _run({**NVME, "NVME_PATH": str(tmp_path)})
    with pytest.raises(LaunchError, match="ninja"):
        check_host(run, {**ENV, "PATH": str(tmp_path)})
    (tmp_path / "ninja").write_text("#!/bin/sh\n")
    (tmp_path / "ninja").chmod(0o755)
    with pytest.raises(LaunchError, match=r"no C\+\+ compiler \(CXX\) finds libaio.h"):
        check_host(run, {**ENV, "PATH": str(tmp_path)})


def test_nvme_is_refused_also_where_deepspeed_could(tmp_path, monkeypatch):
    monkeypatch.setattr(capabilities, "has_op", lambda op: True)
    with pytest.raises(LaunchError, match="on NVMe yet"):
        check_host(_run({**NVME, "NVME_PATH": str(tmp_path)}), ENV)


def test_ligers_kernels_need_a_device():
    run = _run({"KERNELS": "liger"})
    with pytest.raises(DeviceError, match=r"^KERNELS=liger needs an NVIDIA, AMD or Intel device, not a cpu; use KERN"):
        check_host(run, ENV)
    for device in ("nvidia", "amd", "intel"):
        check_kernels(run, device)


@pytest.mark.parametrize(
    ("wanted", "env", "device", "used"),
    [
        ("", {}, "cpu", ""),
        ("nccl", {}, "nvidia", ""),
        ("nccl", {}, "cpu", "cpu is gloo"),
        ("nccl", {"MEGADS_DEVICE": "cpu"}, "nvidia", "cpu is gloo"),
        ("ccl", {}, "intel", "intel is xccl"),
        ("ccl", {"MEGADS_BACKEND": "ccl"}, "intel", ""),
    ],
)
def test_a_backend_that_is_not_the_devices_is_reported(wanted, env, device, used):
    expected = f"--distributed-backend {wanted} has no effect: the backend of device {used}" if used else ""
    assert backend_note(wanted, env, device) == expected


def test_a_pipeline_of_cpu_ranks_needs_another_backend_than_ccl():
    env = ENV | {"MEGADS_BACKEND": "ccl"}
    check_host(_run({}), env)
    with pytest.raises(DeviceError) as told:
        check_host(_run({"PP": "2"}), env)
    assert str(told.value) == (
        "MEGADS_BACKEND=ccl sends nothing from one CPU rank to another, and PP=2 does; use MEGADS_BACKEND=gloo or PP=1"
    )
