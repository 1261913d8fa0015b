"""Peaks by the names that torch reports; unknown is unknown."""

from __future__ import annotations

import pytest

from megads.device.peaks import peak_tflops
from megads.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "fp16", 312.0),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.0),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H200", "bf16", 989.0),
        ("NVIDIA GH200 480GB", "bf16", 989.0),
        ("NVIDIA B200", "bf16", 2250.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-PCIE-32GB", "fp16", 112.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("NVIDIA A10", "bf16", None),
        ("NVIDIA A1000", "bf16", None),
        ("cpu", "fp32", None),
    ],
)
def test_peaks_by_name(name, dtype, expected):
    assert peak_tflops(name, dtype, {}) == expected


def test_the_user_knows_better():
    assert peak_tflops("cpu", "fp32", {"MEGADS_PEAK_TFLOPS": "0.05"}) == 0.05
    assert peak_tflops("NVIDIA A100-SXM4-40GB", "bf16", {"MEGADS_PEAK_TFLOPS": "300"}) == 300.0


@pytest.mark.parametrize("given", ["fast", "0", "-1", "inf", "nan"])
def test_an_override_that_is_no_rate_is_refused(given):
    with pytest.raises(ConfigError, match=f"MEGADS_PEAK_TFLOPS={given}: not a positive number"):
        peak_tflops("cpu", "fp32", {"MEGADS_PEAK_TFLOPS": given})
