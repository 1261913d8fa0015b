"""A host against its vendor's rows, with recorded facts of a host of each vendor."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megads.config.schema import RunConfig
from megads.config.sources.presets import read_machine
from megads.device.needs import read_needs
from megads.doctor.launcher.host_checks import Site
from megads.doctor.launcher.vendor_checks import Host, check_vendor, compare, device_names, verdict
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation

ROOT = Path(__file__).parents[3]
NEEDS = read_needs(ROOT)
VERSIONS = {"nvidia": {"torch": "2.13.0", "nccl": "2.28.9"}, "amd": {"torch": "2.10.0"}, "intel": {"torch": "2.10.0"}}
MACHINES = {"polaris": "nvidia", "frontier": "amd", "aurora": "intel"}


def host(machine: str, env: dict[str, str] | None = None, **changes: Any) -> Host:
    """Return two hosts of a machine as its file in envs/ sets them, and ``env`` in addition."""
    facts = read_machine(machine, ROOT).facts
    vendor = MACHINES[machine]
    made = Host(
        vendor=vendor,
        fabric="slingshot",
        machine=machine,
        env={**facts.environment, **(env or {})},
        origins={name: f"machine {machine}" for name in facts.environment if name not in (env or {})},
        num_hosts=2,
        ranks=facts.ranks_per_host,
        visible=facts.ranks_per_host,
        versions=VERSIONS[vendor],
        has_binding=True,
    )
    return replace(made, **changes)


def found(given: Host) -> dict[str, str]:
    """Return the lines of what is not ok, by name."""
    return {row.name: row.line() for row in compare(NEEDS, given) if row.state != "ok"}


@pytest.mark.parametrize("machine", list(MACHINES))
def test_a_host_with_its_machines_settings_and_plugin_is_right(machine, tmp_path):
    (tmp_path / "libnccl-net.so").touch()
    given = host(machine, {"LD_LIBRARY_PATH": f"/no:{tmp_path}", "NCCL_NET": "AWS Libfabric"})
    assert found(given) == {}
    assert verdict(given, list(compare(NEEDS, given))).status == "ok"


def test_the_users_value_stays_and_is_reported_with_the_line_to_set():
    lines = found(host("frontier", {"NCCL_CROSS_NIC": "0"}))
    assert lines["NCCL_CROSS_NIC"] == (
        "differs  NCCL_CROSS_NIC=0 (your environment): cards of a host reach different switches, so a ring may change "
        "cards; export NCCL_CROSS_NIC=1 (recommended)"
    )


def test_without_the_machines_settings_rows_are_missing():
    given = host("aurora")
    lines = found(replace(given, env={"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}, origins={}))
    assert lines["CCL_PROCESS_LAUNCHER"] == (
        "missing  CCL_PROCESS_LAUNCHER: oneCCL finds its ranks through PALS; "
        "export CCL_PROCESS_LAUNCHER=pmix (required)"
    )
    assert {"CCL_ATL_TRANSPORT", "CCL_KVS_MODE", "FI_MR_CACHE_MONITOR", "FI_CXI_DEFAULT_CQ_SIZE"} <= lines.keys()
    assert "CCL_BCAST" not in lines  # optional


def test_one_host_does_not_need_the_network():
    given = replace(host("aurora"), env={}, origins={}, num_hosts=1)
    assert set(found(given)) == {"ZE_FLAT_DEVICE_HIERARCHY"}
    assert verdict(given, []).notes == ("one host: the network's rows are not compared",)


def test_what_is_known_to_hang_fails_the_stage():
    given = host("polaris", {"FI_MR_CACHE_MONITOR": "memhooks"})
    rows = list(compare(NEEDS, given))
    assert verdict(given, rows).status == "failed"
    assert verdict(given, rows).text.startswith("FI_MR_CACHE_MONITOR: nvidia devices, slingshot network: ")


def test_a_plugin_that_is_not_found_is_missing(tmp_path):
    lines = found(host("frontier", {"LD_LIBRARY_PATH": str(tmp_path)}))
    assert lines["aws-ofi-nccl for RCCL"].startswith("missing  aws-ofi-nccl for RCCL: no librccl-net.so or ")
    assert lines["aws-ofi-nccl for RCCL"].endswith("module load rccl-net-plugin, or its file in NCCL_NET_PLUGIN")
    (tmp_path / "plugin.so").touch()
    assert "aws-ofi-nccl for RCCL" not in found(host("frontier", {"NCCL_NET_PLUGIN": str(tmp_path / "plugin.so")}))


@pytest.mark.parametrize(
    ("machine", "env", "visible", "name", "message"),
    [
        ("polaris", {"CUDA_VISIBLE_DEVICES": "0"}, 1, "CUDA_VISIBLE_DEVICES", "1 device is left for 4 ranks of this"),
        ("polaris", {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, "CUDA_VISIBLE_DEVICES", "or set NGPU_PER_HOST=2"),
        ("polaris", {"CUDA_VISIBLE_DEVICES": "0,1,1,2"}, 4, "CUDA_VISIBLE_DEVICES", "names a device twice"),
        (
            "frontier",
            {"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
            8,
            "HIP_VISIBLE_DEVICES",
            "with ROCR_VISIBLE_DEVICES: numbers what ROCR_VISIBLE_DEVICES leaves",
        ),
        ("aurora", {"ZE_AFFINITY_MASK": "0"}, 1, "ZE_AFFINITY_MASK", "1 device is left for 12 ranks of this host"),
    ],
)
def test_masks(machine, env, visible, name, message):
    assert message in found(host(machine, env, visible=visible))[name]


def test_a_mask_of_every_device_is_right():
    given = host("polaris", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert "CUDA_VISIBLE_DEVICES" not in found(given)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_fail_on_amd_only(name):
    lines = found(host("frontier", {name: "expandable_segments:True,max_split_size_mb:128"}))
    assert lines[name].endswith(f"unset {name}")
    assert name not in found(host("polaris", {name: "expandable_segments:True"}))


def test_versions_with_a_defect():
    lines = found(host("aurora", versions={"torch": "2.8.0+xpu"}))
    assert lines["torch"] == (
        "differs  torch=2.8.0+xpu: send and receive of xccl may hang, which PP and SP use; use torch 2.9 or newer or "
        "export CCL_SEND=direct CCL_RECV=direct"
    )
    avoided = host("aurora", {"CCL_SEND": "direct", "CCL_RECV": "direct"}, versions={"torch": "2.8.0+xpu"})
    assert "torch" not in found(avoided)
    assert "torch" not in found(host("polaris", versions={"torch": "2.8.0"}))
    assert "nccl" not in found(host("polaris"))
    assert "GPUDirect in protocol LL128" in found(host("polaris", devices=("NVIDIA GH200 120GB",)))["nccl"]


def test_ranks_without_cores_of_their_own():
    lines = found(host("frontier", numa_nodes=4, has_binding=False))
    assert lines["CPU_BIND"].endswith("srun --gpus-per-task=1 --gpu-bind=closest")
    assert "CPU_BIND" not in found(host("frontier", numa_nodes=1, has_binding=False))
    assert "CPU_BIND" not in found(host("frontier", numa_nodes=4))


def test_the_stage_reads_the_host(tmp_path):
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / f"dev/nvidia{number}").touch()
        gpu = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA GH200 120GB\nIRQ: 5\n")
    assert device_names(tmp_path) == ("NVIDIA GH200 120GB",) * 2
    (tmp_path / "sys/class/cxi").mkdir(parents=True)
    env = {"NCCL_CROSS_NIC": "1"}
    site = Site(
        TrainRequest(None, (), env, "n1", ROOT, sys.executable),
        RunConfig(machine="slurm"),
        read_machine("slurm", ROOT).facts,
    )
    allocation = Allocation("slurm", ("n1", "n2"), 2)
    result = check_vendor(site, allocation, version_of={"nvidia-nccl-cu12": "2.27.3"}.get, root=tmp_path)  # type: ignore[arg-type]
    assert (result.status, result.text[:30]) == ("failed", "nccl: nvidia devices, slingsho")
    by_name = {row["name"]: row for row in result.data}
    assert by_name["NCCL_CROSS_NIC"]["found"] == "1 (your environment)"
    assert by_name["FI_MR_CACHE_MONITOR"]["state"] == "missing"


def test_a_host_without_accelerators_has_nothing_to_compare(tmp_path):
    request = TrainRequest(None, (), {}, "n1", ROOT, sys.executable)
    site = Site(request, RunConfig(machine="cpu"), read_machine("cpu", ROOT).facts)
    result = check_vendor(site, Allocation("none", ("n1",), 1), root=tmp_path)
    assert (result.status, result.text) == ("ok", "no accelerator, nothing to compare")
