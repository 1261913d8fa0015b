"""Peak matrix throughput of devices, for model-FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megads.errors import ConfigError


@dataclass(frozen=True)
class Peak:
    """Dense (not sparse) peaks in TFLOP/s of what torch calls one device, by the name torch gives it.

    Attributes:
        name: every word of it must occur in the device's name, in any case.
        bf16: products of bfloat16, summed in float32; None: the device has no such units.
        fp16: products of float16, summed in float32.
        tf32: float32 products that torch was told to round to TF32.
        fp32: float32 products as torch computes them by default.
        units: streaming multiprocessors, compute units or vector engines that the peak is of;
            a device with fewer of them is a part of it (MIG, a partition, a tile). 0: not compared.
        source: where the numbers are from.
    """

    name: str
    bf16: float | None
    fp16: float | None
    tf32: float | None
    fp32: float | None
    units: int
    source: str


# The first row that fits counts, so the special ones come first. Vendors print tensor-core
# rates of Hopper and Blackwell with sparsity; here is half of that.
PEAKS = (
    Peak("GH200", 989.0, 989.0, 494.0, 67.0, 132, "NVIDIA GH200 Grace Hopper data sheet; half the sparse figures"),
    Peak("GB300", 2500.0, 2500.0, 1250.0, 80.0, 0, "NVIDIA GB300 NVL72 data sheet / 72 GPUs; half the sparse figures"),
    Peak("B300", 2250.0, 2250.0, 1125.0, 75.0, 0, "NVIDIA HGX B300 data sheet / 8 GPUs; half the sparse figures"),
    Peak("GB200", 2500.0, 2500.0, 1250.0, 80.0, 0, "NVIDIA GB200 NVL72 data sheet, per GPU; half the sparse figures"),
    Peak("B200", 2250.0, 2250.0, 1125.0, 75.0, 0, "NVIDIA DGX B200 data sheet / 8 GPUs; half the sparse figures"),
    Peak("H200 NVL", 835.0, 835.0, 417.0, 60.0, 132, "NVIDIA H200 data sheet, NVL column; half the sparse figures"),
    Peak("H200", 989.0, 989.0, 494.0, 67.0, 132, "NVIDIA H200 data sheet, SXM column; half the sparse figures"),
    Peak("H100 PCIe", 756.0, 756.0, 378.0, 51.0, 114, "NVIDIA H100 data sheet, PCIe column; half the sparse figures"),
    Peak("H100 NVL", 835.0, 835.0, 417.0, 60.0, 132, "NVIDIA H100 data sheet, NVL column; half the sparse figures"),
    Peak("H100", 989.0, 989.0, 494.0, 67.0, 132, "NVIDIA H100 data sheet, SXM column; half the sparse figures"),
    Peak("H800 PCIe", 756.0, 756.0, 378.0, 51.0, 114, "NVIDIA H800 data sheet, PCIe column; half the sparse figures"),
    Peak("H800", 989.0, 989.0, 494.0, 67.0, 132, "NVIDIA H800 data sheet, SXM column; half the sparse figures"),
    Peak("H20", 148.0, 148.0, 74.0, 44.0, 78, "NVIDIA H20 data sheet, dense; the same for 96 and 141 GB"),
    Peak("A800", 312.0, 312.0, 156.0, 19.5, 108, "NVIDIA A800 data sheet; an A100 with a slower NVLink"),
    Peak("A100", 312.0, 312.0, 156.0, 19.5, 108, "NVIDIA A100 data sheet; the same for 40 and 80 GB, SXM and PCIe"),
    Peak("L40S", 362.05, 362.05, 183.0, 91.6, 142, "NVIDIA L40S data sheet; the first of each pair is dense"),
    Peak("L40", 181.05, 181.05, 90.5, 90.5, 142, "NVIDIA L40 data sheet; the first of each pair is dense"),
    Peak("A40", 149.7, 149.7, 74.8, 37.4, 84, "NVIDIA A40 data sheet; the first of each pair is dense"),
    Peak("V100 PCIE", None, 112.0, None, 14.0, 80, "NVIDIA V100 data sheet, PCIe column"),
    Peak("V100", None, 125.0, None, 15.7, 80, "NVIDIA V100 data sheet, SXM2 column"),
    Peak("MI355X", 2516.6, 2516.6, None, 157.3, 256, "AMD Instinct MI355X data sheet, matrix; TF32 is emulated"),
    Peak("MI350X", 2306.9, 2306.9, None, 144.2, 256, "AMD Instinct MI350X data sheet, matrix; TF32 is emulated"),
    Peak("MI325X", 1307.4, 1307.4, 653.7, 163.4, 304, "AMD Instinct MI325X data sheet, matrix"),
    Peak("MI300X", 1307.4, 1307.4, 653.7, 163.4, 304, "AMD Instinct MI300X data sheet, matrix"),
    Peak("MI300A", 980.6, 980.6, 490.3, 122.6, 228, "AMD Instinct MI300A data sheet, matrix"),
    Peak("MI250X", 191.5, 191.5, None, 47.85, 110, "AMD Instinct MI250X data sheet, matrix: a card / 2, one GCD"),
    Peak("MI250", 181.05, 181.05, None, 45.25, 104, "AMD Instinct MI250 data sheet, matrix: a card / 2, one GCD"),
    # One name for a card, for one of its two tiles, and for parts with fewer engines (some
    # tiles have 448): only the count of engines tells which is the device. At the highest clock.
    Peak("Max 1550", 832.0, 832.0, 419.0, 52.0, 1024, "Intel Data Center GPU Max 1550 brief, XMX, fp32 vector: a card"),
)

NEEDS_UNITS = ("Max 1550",)
"""Rows that say nothing about a device whose units are not known."""


def peak_tflops(device_name: str, dtype: str, env: Mapping[str, str], units: int = 0) -> float | None:
    """Return the device's dense peak in TFLOP/s; None where it is not known, never a guess.

    Args:
        device_name: as torch reports it, see ``Vendor.device_name``.
        dtype: ``bf16``, ``fp16``, ``tf32`` or ``fp32``; see ``Vendor.product_dtype``.
        env: ``MEGADS_PEAK_TFLOPS`` in it, of one rank, is taken instead of the table.
        units: that the device has, see ``Vendor.units``; 0: not known. A part of the device that the
            data sheet is about has that part of its peak; one with more is another device.

    Raises:
        ConfigError: ``MEGADS_PEAK_TFLOPS`` is not a positive number.
    """
    given = given_peak(env)
    if given:
        return given
    peak = peak_row(device_name)
    rate = {"bf16": peak.bf16, "fp16": peak.fp16, "tf32": peak.tf32, "fp32": peak.fp32}[dtype] if peak else None
    if peak is None or rate is None or units > peak.units > 0 or (peak.name in NEEDS_UNITS and not units):
        return None
    return rate * units / peak.units if units and peak.units else rate


def slow_products(device_name: str, dtype: str) -> str:
    """Return why a device computes products of ``dtype`` much slower than others; nothing where it does not.

    That is fp32 without TF32, and bf16 where there are no units for it.

    Args:
        dtype: as of :func:`peak_tflops`; ``tf32`` where torch rounds to it.
    """
    peak = peak_row(device_name)
    if peak is not None and dtype == "bf16" and peak.bf16 is None:
        return f"{device_name} has no units for bf16 and emulates it; DTYPE=fp16 is faster"
    if dtype != "fp32" or peak is None or peak.fp32 is None:
        return ""
    faster = {
        "DTYPE=bf16": peak.bf16,
        "DTYPE=fp16": None if peak.bf16 else peak.fp16,
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 (TF32)": peak.tf32,
    }
    times = [f"{rate / peak.fp32:.2g} times as fast with {how}" for how, rate in faster.items() if rate]
    return f"products in fp32 without TF32; the peak is {' and '.join(times)}" if times else ""


def peak_row(device_name: str) -> Peak | None:
    """Return the row of a device by the name that torch gives it; None where no row fits."""
    words = set(device_name.lower().replace("-", " ").split())
    return next((peak for peak in PEAKS if words.issuperset(peak.name.lower().split())), None)


def given_peak(env: Mapping[str, str]) -> float | None:
    """Return ``MEGADS_PEAK_TFLOPS`` as a number, None when it is not set.

    Raises:
        ConfigError: it is not a positive number.
    """
    given = env.get("MEGADS_PEAK_TFLOPS", "")
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            f"MEGADS_PEAK_TFLOPS={given}: not a positive number; set the dense TFLOP/s per device, e.g. 312"
        )
    return value
