"""The shell and Python find the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.cluster.machine import count_accelerators, machine_name

ROWS = """
# c

login[0-9]*.big  big
big-?  big # nodes
*.lab  lab
x1*  SITE=here*  both
SITE=no[!w]  never
/etc/site  path
"""


def found(bash, checkout, host, top, env) -> str:
    script = """
        megads_has_accelerator() { [[ -n "${HAS:-}" ]]; }
        source "$0/ALCF/helpers.sh"; megads_find_machine "$1" "$2"; echo "${machine}"
    """
    done = bash("-u", "-c", script, checkout, host, top, MACHINE=None, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("host", ["login1.big", "login.big", "big-1", "big-12", "a.lab", "x", "#", "BIG-1"])
def test_by_host_name(bash, checkout, tmp_path, host):
    (checkout / "envs/machines.txt").write_text(ROWS)
    none = {"dev": tmp_path / "none", "sys": tmp_path / "none", "top": tmp_path / "none"}
    assert found(bash, checkout, host, none["top"], {}) == machine_name(host, {}, checkout, **none)


@pytest.mark.parametrize(
    ("host", "env", "expected"),
    [
        ("x1000", {"SITE": "here.edu"}, "both"),
        ("x1000", {"SITE": "there"}, "cpu"),
        ("x1000", {"SITE": ""}, "cpu"),
        ("x2000", {"SITE": "here"}, "cpu"),
        ("x2000", {"SITE": "not"}, "never"),
        ("x2000", {"SITE": "now"}, "cpu"),
    ],
)
def test_by_variables(bash, checkout, tmp_path, host, env, expected):
    (checkout / "envs/machines.txt").write_text(ROWS)
    none = {"dev": tmp_path / "none", "sys": tmp_path / "none", "top": tmp_path / "none"}
    assert machine_name(host, env, checkout, **none) == expected
    assert found(bash, checkout, host, none["top"], env) == expected


def test_by_path(bash, checkout, tmp_path):
    (checkout / "envs/machines.txt").write_text(ROWS)
    (tmp_path / "etc/site").mkdir(parents=True)
    none = {"dev": tmp_path / "none", "sys": tmp_path / "none"}
    assert machine_name("x", {}, checkout, **none, top=tmp_path) == "path"
    assert found(bash, checkout, "x", tmp_path, {}) == "path"


@pytest.mark.parametrize(
    ("env", "with_device", "without"),
    [
        ({}, "generic", "cpu"),
        ({"PBS_JOBID": "7.x"}, "pbs", "cpu"),
        ({"SLURM_JOB_ID": "7"}, "slurm", "cpu"),
        ({"SLURM_JOB_ID": "", "PBS_JOBID": ""}, "generic", "cpu"),
    ],
)
def test_a_job_of_an_unknown_site(bash, checkout, tmp_path, env, with_device, without):
    (checkout / "envs/machines.txt").write_text(ROWS)
    (tmp_path / "dev").mkdir()
    folders = {"dev": tmp_path / "dev", "sys": tmp_path / "none", "top": tmp_path / "none"}
    assert machine_name("x", env, checkout, **folders) == without
    assert found(bash, checkout, "x", folders["top"], env) == without
    (tmp_path / "dev/nvidia0").touch()
    assert machine_name("x", env, checkout, **folders) == with_device
    assert found(bash, checkout, "x", folders["top"], env | {"HAS": "1"}) == with_device


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
