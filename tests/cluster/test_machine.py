from __future__ import annotations

from pathlib import Path

import pytest

from megads.cluster.machine import (
    available_memory,
    count_accelerators,
    count_cores,
    cpu_computes_fp16,
    machine_name,
    read_machines,
    visible_accelerators,
)
from megads.errors import ConfigError

ROOT = Path(__file__).parents[2]


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "root/envs/machines.txt", "# comment\n\nlogin[0-9]*.big  big\nbig-*  big # nodes\n*.lab  lab\n")
    for name in ("big", "lab", "cpu", "generic"):
        write(tmp_path / f"root/envs/{name}.yaml")
    return tmp_path / "root"


@pytest.fixture
def devices(tmp_path):
    """Folders in place of /dev and /sys, empty."""
    return {"dev": tmp_path / "dev", "sys": tmp_path / "sys"}


@pytest.mark.parametrize(
    ("host", "env", "expected"),
    [
        ("login3.big", {}, "big"),
        ("big-0017", {}, "big"),
        ("x.lab", {}, "lab"),
        ("Big-0017", {}, "cpu"),
        ("loginX.big", {}, "cpu"),
        ("big-0017", {"MACHINE": "lab"}, "lab"),
        ("x.lab", {"MACHINE": ""}, "lab"),
    ],
)
def test_machine_by_name(root, devices, host, env, expected):
    assert machine_name(host, env, root, **devices) == expected


def test_unknown_machine_lists_the_known(root):
    with pytest.raises(ConfigError, match="MACHINE=bigg is not known; known machines: big, cpu, generic, lab"):
        machine_name("x", {"MACHINE": "bigg"}, root)


def test_a_broken_row_names_its_line(root):
    write(root / "envs/machines.txt", "a b\nc\n")
    with pytest.raises(ConfigError, match=r"machines.txt:2: expected 'CONDITION .* MACHINE', got 'c'"):
        machine_name("x", {}, root)


def test_the_checkouts_own_list_is_well_formed():
    for _, name in read_machines(ROOT / "envs" / "machines.txt"):
        assert (ROOT / "envs" / f"{name}.sh").is_file()


def test_nvidia(devices, root):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        write(devices["dev"] / name)
    assert count_accelerators({}, **devices) == 3
    assert machine_name("x", {}, root, **devices) == "generic"
    assert machine_name("x", {"MEGADS_DEVICE": "cpu"}, root, **devices) == "cpu"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("0", 1), ("1,0", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3", 2), ("GPU-ab,GPU-cd", 2)],
)
def test_masks(devices, mask, expected):
    write(devices["dev"] / "nvidia0")
    write(devices["dev"] / "nvidia1")
    assert count_accelerators({"CUDA_VISIBLE_DEVICES": mask}, **devices) == expected


def test_amd_counts_nodes_with_compute_units(devices):
    write(devices["dev"] / "kfd")
    for node, simds in enumerate((0, 440, 440)):
        text = f"cpu_cores_count 64\nsimd_count {simds}\n"
        write(devices["sys"] / f"class/kfd/kfd/topology/nodes/{node}/properties", text)
    assert count_accelerators({}, **devices) == 2
    assert count_accelerators({"ROCR_VISIBLE_DEVICES": "1"}, **devices) == 1
    assert count_accelerators({"HIP_VISIBLE_DEVICES": ""}, **devices) == 0


def test_intel_counts_tiles_of_data_centre_gpus(devices):
    card = devices["sys"] / "class/drm"
    for name, identity in (("card0", "0x0bd5"), ("card1", "0x0bd5"), ("card2", "0x46a6")):
        write(card / name / "device/vendor", "0x8086\n")
        write(card / name / "device/device", identity + "\n")
    write(card / "card0-HDMI-1/device/vendor", "0x8086\n")
    for name in ("card0", "card1"):
        for tile in ("gt0", "gt1"):
            (card / name / "gt" / tile).mkdir(parents=True)
    assert count_accelerators({}, **devices) == 4
    assert count_accelerators({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, **devices) == 2
    assert count_accelerators({"ZE_AFFINITY_MASK": "0"}, **devices) == 1


def test_available_memory_of_a_plain_host(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert available_memory(tmp_path / "proc", tmp_path / "sys") == 50 * 1024


def test_available_memory_under_cgroup_2_is_the_tightest_of_all_parents(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 1000000 kB\n")
    write(tmp_path / "proc/self/cgroup", "0::/job/step\n")
    top = tmp_path / "sys/fs/cgroup"
    write(top / "job/memory.max", "5000\n")
    write(top / "job/memory.current", "4000\n")
    write(top / "job/memory.stat", "anon 1000\ninactive_file 700\n")
    write(top / "job/step/memory.max", "max\n")
    write(top / "job/step/memory.current", "4000\n")
    assert available_memory(tmp_path / "proc", tmp_path / "sys") == 1700


def test_available_memory_under_cgroup_1_in_a_container(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 1000000 kB\n")
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n")
    assert available_memory(tmp_path / "proc", tmp_path / "sys") == 8000


def test_cores_follow_the_quota(tmp_path):
    assert count_cores(tmp_path, tmp_path) >= 1
    write(tmp_path / "self/cgroup", "0::/\n")
    write(tmp_path / "fs/cgroup/cpu.max", "150000 100000\n")
    assert count_cores(tmp_path, tmp_path) == 1
    write(tmp_path / "fs/cgroup/cpu.max", "max 100000\n")
    assert count_cores(tmp_path, tmp_path) == count_cores(tmp_path / "none", tmp_path)


def test_vendors_are_counted_apart(devices):
    write(devices["dev"] / "nvidia0")
    write(devices["dev"] / "kfd")
    write(devices["sys"] / "class/kfd/kfd/topology/nodes/1/properties", "simd_count 440\n")
    assert visible_accelerators({}, **devices) == {"nvidia": 1, "amd": 1}
    assert visible_accelerators({"ROCR_VISIBLE_DEVICES": ""}, **devices) == {"nvidia": 1}
    assert visible_accelerators({"CUDA_VISIBLE_DEVICES": "-1"}, **devices) == {}


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_fp16\n", True),
        ("flags\t\t: fpu avx512f avx512_bf16\n", False),
        ("Features\t: fp asimd asimdhp\n", True),
        ("Features\t: fp asimd\n", False),
        ("vendor_id: unheard of\n", True),
    ],
)
def test_fp16_by_the_flags_of_the_cpu(tmp_path, cpuinfo, expected):
    write(tmp_path / "cpuinfo", cpuinfo)
    assert cpu_computes_fp16(tmp_path) is expected


def test_this_host_has_memory_and_cores():
    assert available_memory() > 2**20
    assert count_cores() >= 1
