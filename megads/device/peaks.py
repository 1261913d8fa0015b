"""Peak matrix throughput of devices, for model-FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megads.errors import ConfigError


@dataclass(frozen=True)
class Peak:
    """Dense (not sparse) peaks of one device in TFLOP/s, by the name torch gives it."""

    name: str  # every word of it must occur in the device's name, in any case
    bf16: float | None
    fp16: float | None
    fp32: float | None


# From the vendors' data sheets. fp32 is the rate without reduced-precision (TF32) units,
# which torch leaves off by default. The first row that fits counts, so the special ones
# come first. torch sees one MI250X die (GCD) as a device: half the card. Intel's Max 1550 is
# left out: its matrix rate depends on the units a site enabled and on a clock that falls
# under load, so no single number is right.
PEAKS = (
    Peak("GH200", 989.0, 989.0, 67.0),  # NVIDIA GH200 Grace Hopper data sheet
    Peak("GB200", 2500.0, 2500.0, 80.0),  # NVIDIA GB200 NVL72 data sheet, per GPU, half the sparse figure
    Peak("B200", 2250.0, 2250.0, 75.0),  # NVIDIA DGX B200 data sheet, per GPU, half the sparse figure
    Peak("H200 NVL", 835.0, 835.0, 60.0),  # NVIDIA H200 data sheet, NVL column
    Peak("H200", 989.0, 989.0, 67.0),  # NVIDIA H200 data sheet, SXM column
    Peak("H100 PCIe", 756.0, 756.0, 51.0),  # NVIDIA H100 data sheet, PCIe column
    Peak("H100 NVL", 835.0, 835.0, 60.0),  # NVIDIA H100 data sheet, NVL column
    Peak("H100", 989.0, 989.0, 67.0),  # NVIDIA H100 data sheet, SXM column
    Peak("A100", 312.0, 312.0, 19.5),  # NVIDIA A100 data sheet; the same for 40 and 80 GB
    Peak("A40", 149.7, 149.7, 37.4),  # NVIDIA A40 data sheet
    Peak("V100 PCIE", None, 112.0, 14.0),  # NVIDIA V100 data sheet, PCIe column
    Peak("V100", None, 125.0, 15.7),  # NVIDIA V100 data sheet, SXM2 column; no bf16 units
    Peak("MI300X", 1307.4, 1307.4, 163.4),  # AMD Instinct MI300X data sheet, matrix
    Peak("MI300A", 980.6, 980.6, 122.6),  # AMD Instinct MI300A data sheet, matrix
    Peak("MI250X", 191.5, 191.5, 47.9),  # AMD Instinct MI250X data sheet: 383 and 95.7 (matrix) per two GCDs
    Peak("MI250", 181.05, 181.05, 45.25),  # AMD Instinct MI250 data sheet: 362.1 and 90.5 (matrix) per two GCDs
)


def peak_tflops(device_name: str, dtype: str, env: Mapping[str, str]) -> float | None:
    """Return the device's dense peak in TFLOP/s; None where it is not known, never a guess.

    Args:
        device_name: as torch reports it, see ``Vendor.device_name``.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        env: ``MEGADS_PEAK_TFLOPS`` in it is taken instead of the table.

    Raises:
        ConfigError: ``MEGADS_PEAK_TFLOPS`` is not a positive number.
    """
    given = given_peak(env)
    if given:
        return given
    lowered = device_name.lower()
    words = set(lowered.replace("-", " ").split())
    for peak in PEAKS:
        if all(word in words for word in peak.name.lower().split()):
            rates = {"bf16": peak.bf16, "fp16": peak.fp16, "fp32": peak.fp32}
            return rates[dtype]
    return None


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
        raise ConfigError(f"MEGADS_PEAK_TFLOPS={given}: not a positive number; give dense TFLOP/s per device, e.g. 312")
    return value
