"""Which vendor and backend are taken, and what is said when that cannot be."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from megads.device import vendor as rows
from megads.device.vendor import VENDORS, Vendor, vendor
from megads.errors import DependencyError, DeviceError

CPU = VENDORS[-1]


def _fake(count: int) -> Vendor:
    """A row with a stand-in for torch's module: a test host has no such devices."""
    claimed: list[int] = []

    class Row(Vendor):
        module = SimpleNamespace(device_count=lambda: count, set_device=claimed.append, claimed=claimed)

    return Row("nvidia", "cuda", ("nccl",), lambda: True, ("gloo",))


def test_the_first_present_vendor_is_taken():
    assert vendor({}).name == next(row.name for row in VENDORS if row.present())


def test_the_cpu_can_always_be_asked_for():
    row = vendor({"MEGADS_DEVICE": "cpu"})
    assert (row.name, row.backend) == ("cpu", "gloo")
    assert row.device(3) == torch.device("cpu")
    assert row.device_name(torch.device("cpu")) == "cpu"
    row.synchronize(torch.device("cpu"))


def test_memory_of_the_cpu_is_what_the_process_has_held():
    before = CPU.memory_bytes(torch.device("cpu"))
    assert before > 50e6  # torch alone is more
    assert before < 1e12


def test_devices_that_torch_does_not_find_are_no_reason_to_train_on_the_cpu(monkeypatch):
    monkeypatch.setattr(rows, "VENDORS", (CPU,))
    monkeypatch.setattr(rows, "visible_accelerators", lambda env: {"amd": 1})
    with pytest.raises(DeviceError) as caught:
        vendor({"ROCR_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"})
    assert str(caught.value) == (
        "this host shows 1 amd device (ROCR_VISIBLE_DEVICES=3 CUDA_VISIBLE_DEVICES=3), and torch "
        f"{torch.__version__} finds none: install a torch built for amd, check the driver and what hides devices, or "
        "set MEGADS_DEVICE=cpu to train on the CPU"
    )
    assert vendor({"MEGADS_DEVICE": "cpu"}).name == "cpu"
    monkeypatch.setattr(rows, "visible_accelerators", lambda env: {})
    assert vendor({}).name == "cpu"


def test_backend_override_reaches_the_row(monkeypatch):
    monkeypatch.setattr(rows, "VENDORS", (_fake(4), CPU))
    assert vendor({"MEGADS_BACKEND": "gloo"}).backend == "gloo"
    assert vendor({"MEGADS_DEVICE": "cpu", "MEGADS_BACKEND": "gloo"}).backend == "gloo"


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("MEGADS_DEVICE", "cpu")
    assert vendor().name == "cpu"


def test_a_device_that_is_not_there(monkeypatch):
    absent = [replace(row, present=lambda: False) for row in VENDORS[:-1]]
    monkeypatch.setattr(rows, "VENDORS", (*absent, CPU))
    with pytest.raises(
        DeviceError, match=r"MEGADS_DEVICE=intel: torch \S+ finds no such device on this host; it finds"
    ):
        vendor({"MEGADS_DEVICE": "intel"})


@pytest.mark.skipif(torch.distributed.is_mpi_available(), reason="this torch was built with MPI")
def test_a_backend_this_torch_was_not_built_with():
    with pytest.raises(
        DependencyError, match=r"MEGADS_BACKEND=mpi: torch \S+ was built without it; this build has gloo"
    ):
        vendor({"MEGADS_DEVICE": "cpu", "MEGADS_BACKEND": "mpi"})


def test_the_ccl_package_is_named_when_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "oneccl_bindings_for_pytorch", None)
    with pytest.raises(DependencyError, match="and oneccl_bindings_for_pytorch is not installed"):
        vendor({"MEGADS_DEVICE": "cpu", "MEGADS_BACKEND": "ccl"})
    with pytest.raises(DependencyError, match=r"device cpu: .* no communication backend ccl; install oneccl_bind"):
        _ = replace(CPU, backends=("ccl",)).backend


def test_every_rank_claims_its_device():
    row = _fake(4)
    assert row.device(2) == torch.device("cuda", 2)
    assert row.module.claimed == [2]


def test_a_masked_device_is_number_zero():
    assert _fake(1).device(3) == torch.device("cuda", 0)


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(
        DeviceError, match="local rank 4 has no device: this process sees 4 nvidia devices; start at most 4 ranks per"
    ):
        _fake(4).device(4)


def test_a_mask_that_shows_some_devices_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(DeviceError, match=r"this process sees 2 nvidia devices \(CUDA_VISIBLE_DEVICES=2,3\); start"):
        _fake(2).device(3)


def test_the_allocator_is_that_of_the_environment(monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert (_fake(1).allocator(), CPU.allocator()) == ("max_split_size_mb:512", "")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert _fake(1).allocator() == "expandable_segments:True"


def test_a_cpu_has_no_units_no_allocator_and_no_tf32():
    device = torch.device("cpu")
    assert (CPU.units(device), CPU.memory_now(device), CPU.product_dtype("fp32")) == (0, None, "fp32")
    assert [str(each) for each in CPU.activities()] == ["ProfilerActivity.CPU"]


def _told(lines: str) -> list[str]:
    warnings.simplefilter("error")
    exec(lines, {"torch": torch})
    asked = ((VENDORS[0], "fp32"), (VENDORS[0], "bf16"), (CPU, "fp32"))
    return [row.product_dtype(dtype) for row, dtype in asked]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", "fp32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32"),
        ("torch.set_float32_matmul_precision('high')", "tf32"),
        (
            "m = torch.backends.cuda.matmul\nif hasattr(m, 'fp32_precision'): m.fp32_precision = 'ieee'",
            "fp32",
        ),
    ],
)
def test_products_in_tf32_are_known_however_torch_was_told(lines, expected):
    # In a fork: torch is told for the whole process, and some of it can not be taken back.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_told, (lines,)) == [expected, "bf16", "fp32"]


@pytest.mark.device
@pytest.mark.skipif(vendor({}).name == "cpu", reason="no accelerator")
def test_a_real_device_does_arithmetic():
    row = vendor({})
    device = row.device(0)
    x = torch.ones(8, device=device)
    row.synchronize(device)
    assert x.sum().item() == 8
    assert row.memory_bytes(device) >= 32
    assert row.device_name(device)
    assert row.units(device) > 0
    row.forget_peak(device)
    memory = row.memory_now(device)
    assert memory is not None
    assert 32 <= memory.allocated <= memory.peak <= memory.reserved


def test_a_registered_device_is_taken_before_all_others(monkeypatch):
    monkeypatch.setattr(rows, "VENDORS", rows.VENDORS)
    monkeypatch.setitem(rows.BACKENDS, "other", None)  # it is not there afterwards
    new = Vendor("other", "meta", ("gloo",), lambda: True)
    rows.register(new)
    rows.register(new)
    assert vendor({}) is new
    assert vendor({"MEGADS_DEVICE": "cpu"}) is CPU
    assert [row.name for row in rows.VENDORS].count("other") == 1
    assert vendor({"MEGADS_BACKEND": "gloo"}).backends == ("gloo",)
