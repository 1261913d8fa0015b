"""Ranks that share a device, or differ in their vendor, are named before anything connects."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from megads.cluster.ranks import RankInfo
from megads.comm.devices import RankDevice, compare_devices, device_problem
from megads.device.vendor import VENDORS, Vendor
from megads.errors import DeviceError

CPU = VENDORS[-1]
FIRST = RankDevice("nid1", "nid1 a1", "nvidia", "GPU-0", 4, "")


def _hosts(hosts: int, ranks: int) -> list[RankDevice]:
    """Return the devices of ``hosts`` whose ranks each have their own; hosts number theirs alike."""
    return [
        replace(FIRST, host=f"nid{host}", boot=f"nid{host} b", identity=f"GPU-{rank}")
        for host in range(hosts)
        for rank in range(ranks)
    ]


def test_devices_of_their_own_are_fine():
    assert device_problem(_hosts(3, 4)) == ""
    assert device_problem([replace(FIRST, vendor="cpu", identity="")] * 4) == ""
    # Where torch gives no identity nothing can be said.
    assert device_problem([replace(FIRST, identity="")] * 4) == ""


def test_hosts_of_one_name_are_told_apart():
    assert device_problem([FIRST, replace(FIRST, boot="nid1 a2")]) == ""
    assert device_problem([FIRST, replace(FIRST, host="other")]) != ""


def test_ranks_that_share_a_device_are_named_with_the_mask():
    devices = _hosts(2, 4)
    for rank in (5, 7):
        devices[rank] = replace(devices[rank], identity="GPU-0", seen=1, masks="CUDA_VISIBLE_DEVICES=0")
    devices[4] = replace(devices[4], seen=1, masks="CUDA_VISIBLE_DEVICES=0")
    assert device_problem(devices) == (
        "ranks 4, 5, 7 on nid1 all use device GPU-0: a process there sees 1 nvidia device, with "
        "CUDA_VISIBLE_DEVICES=0; show each rank a device of its own (CUDA_VISIBLE_DEVICES) or all of them, or start "
        "fewer ranks per host (NGPU_PER_HOST); FORCE=1 starts anyway"
    )
    assert device_problem(devices, force=True) == ""


@pytest.mark.parametrize(
    ("vendor", "masks"),
    [
        ("amd", "ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES"),
        ("intel", "ZE_AFFINITY_MASK or ONEAPI_DEVICE_SELECTOR"),
    ],
)
def test_the_variables_are_the_vendors(vendor, masks):
    problem = device_problem([replace(FIRST, vendor=vendor)] * 12)
    assert problem.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more on nid1 all use device GPU-0: a process there")
    assert f"device of its own ({masks}) or" in problem


def test_a_rank_that_sees_no_device_is_named_even_by_force():
    devices = _hosts(2, 4)
    devices[6] = replace(devices[6], vendor="cpu", identity="", seen=1)
    expected = (
        "ranks have devices of different vendors: nvidia on ranks 0, 1, 2, 3, 4, 5, 7, cpu on rank 6; rank 6 is on "
        "nid1; check what hides its devices (CUDA_VISIBLE_DEVICES), or name one with MEGADS_DEVICE"
    )
    assert device_problem(devices) == device_problem(devices, force=True) == expected
    mixed = device_problem([FIRST, replace(FIRST, vendor="amd")])
    assert mixed.endswith("use hosts of one kind, or name one with MEGADS_DEVICE")


def _fake(identity: str) -> Vendor:
    class Row(Vendor):
        module = SimpleNamespace(
            device_count=lambda: 1, get_device_properties=lambda device: SimpleNamespace(uuid=identity)
        )

    return Row("nvidia", "cuda", ("nccl",), lambda: True)


def _compared(rows: list[Vendor]) -> list[str]:
    """Return what every rank is told; ranks are threads that share a store."""
    store, told = dist.HashStore(), [""] * len(rows)

    def rank(number: int) -> None:
        info = RankInfo(number, len(rows), number, len(rows), "test")
        try:
            compare_devices(rows[number], torch.device("cpu"), info, store, {"CUDA_VISIBLE_DEVICES": "0"})
        except DeviceError as error:
            told[number] = str(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_every_rank_is_told_the_same():
    assert _compared([_fake(f"GPU-{i}") for i in range(3)]) == [""] * 3
    assert _compared([CPU] * 3) == [""] * 3
    told = _compared([_fake("GPU-1"), _fake("GPU-0"), _fake("GPU-1")])
    assert len(set(told)) == 1
    assert "ranks 0, 2 on " in told[0]
    assert "all use device GPU-1: a process there sees 1 nvidia device, with CUDA_VISIBLE_DEVICES=0;" in told[0]
    assert _compared([_fake("GPU-1"), CPU])[1].startswith("ranks have devices of different vendors: nvidia on rank 0,")


def test_one_rank_asks_nobody():
    compare_devices(_fake("x"), torch.device("cpu"), RankInfo(0, 1, 0, 1, ""), None, {})  # type: ignore[arg-type]
