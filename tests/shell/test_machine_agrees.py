"""The shell and Python find the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.cluster.machine import count_accelerators, machine_name

ROWS = "# c\n\nlogin[0-9]*.big  big\nbig-?  big # nodes\n*.lab  lab"


@pytest.mark.parametrize("host", ["login1.big", "login.big", "big-1", "big-12", "a.lab", "x", "#", "BIG-1"])
def test_by_host_name(bash, checkout, tmp_path, host):
    (checkout / "envs/machines.txt").write_text(ROWS)
    script = """
        megads_has_accelerator() { return 1; }
        source "$0/ALCF/helpers.sh"; megads_find_machine "$1"; echo "${machine}"
    """
    done = bash("-c", script, checkout, host, MACHINE=None)
    none = {"dev": tmp_path / "none", "sys": tmp_path / "none"}
    assert done.stdout.strip() == machine_name(host, {}, checkout, **none), done.stderr


def tree(top: Path, *files: str) -> dict[str, Path]:
    for file in files:
        name, _, text = file.partition("=")
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return {"dev": top / "dev", "sys": top / "sys"}


NVIDIA = ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl")
AMD = ("dev/kfd", "sys/class/kfd/kfd/topology/nodes/1/properties=simd_count 440")
PVC = ("sys/class/drm/card0/device/vendor=0x8086", "sys/class/drm/card0/device/device=0x0bd5")


@pytest.mark.parametrize(
    ("files", "env", "expected"),
    [
        ((), {}, False),
        (NVIDIA, {}, True),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1"}, True),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, False),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1"}, False),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ","}, False),
        (NVIDIA, {"MEGADS_DEVICE": "cpu"}, False),
        (NVIDIA[2:], {}, False),
        (AMD, {}, True),
        (AMD, {"HIP_VISIBLE_DEVICES": ""}, False),
        (AMD, {"ROCR_VISIBLE_DEVICES": ""}, False),
        (("dev/kfd", "sys/class/kfd/kfd/topology/nodes/0/properties=simd_count 0"), {}, False),
        (AMD[1:], {}, False),
        (PVC, {}, True),
        (PVC, {"MEGADS_DEVICE": "cpu"}, False),
        ((PVC[0], "sys/class/drm/card0/device/device=0x46a6"), {}, False),
        (("sys/class/drm/card0/device/vendor=0x10de", PVC[1]), {}, False),
    ],
)
def test_by_accelerators(bash, checkout, tmp_path, files, env, expected):
    folders = tree(tmp_path / "host", *files)
    assert (count_accelerators(env, **folders) > 0) is expected
    script = 'source "$0/ALCF/helpers.sh"; megads_has_accelerator "$1" "$2"'
    done = bash("-c", script, checkout, folders["dev"], folders["sys"], **env)
    assert (done.returncode == 0) is expected, done.stderr


def test_on_this_host(bash, checkout):
    import socket

    done = bash("-c", 'source "$0/ALCF/helpers.sh"; megads_find_machine; echo "${machine}"', checkout)
    assert done.stdout.strip() == machine_name(socket.gethostname(), {}, checkout)
