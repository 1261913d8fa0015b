"""Peaks by the names that torch reports; unknown is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.plan.places.peaks import PEAKS, peak_tflops, slow_products

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "fp16", 312.0),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156.0),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.0),
        ("NVIDIA H100 80GB HBM3", "fp32", 67.0),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "bf16", 835.0),
        ("NVIDIA H200", "bf16", 989.0),
        ("NVIDIA H200 NVL", "bf16", 835.0),
        ("NVIDIA GH200 480GB", "bf16", 989.0),
        ("NVIDIA B200", "bf16", 2250.0),
        ("NVIDIA GB200", "bf16", 2500.0),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA A40", "bf16", 149.7),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-PCIE-32GB", "fp16", 112.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla V100-SXM2-16GB", "tf32", None),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI300X VF", "bf16", 1307.4),
        ("AMD Instinct MI300A", "fp16", 980.6),
        ("AMD Instinct MI325X", "bf16", 1307.4),
        ("Intel(R) Data Center GPU Max 1550", "bf16", None),
        ("NVIDIA A10", "bf16", None),
        ("NVIDIA A1000", "bf16", None),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40", "fp32", 90.5),
        ("NVIDIA L4", "bf16", None),
        ("NVIDIA H20", "bf16", 148.0),
        ("NVIDIA H20-3e", "bf16", 148.0),
        ("NVIDIA H800", "bf16", 989.0),
        ("NVIDIA H800 PCIe", "bf16", 756.0),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250.0),
        ("NVIDIA GB300", "fp32", 80.0),
        ("AMD Instinct MI350X", "bf16", 2306.9),
        ("AMD Instinct MI355X", "bf16", 2516.6),
        ("AMD Instinct MI355X", "tf32", None),
        ("cpu", "fp32", None),
    ],
)
def test_peaks_by_name(name, dtype, expected):
    assert peak_tflops(name, dtype, {}) == expected


@pytest.mark.parametrize(
    ("name", "units", "dtype", "expected"),
    [
        ("NVIDIA H200", 132, "bf16", 989.0),
        ("AMD Instinct MI250X", 110, "bf16", 191.5),  # torch's device is one of the two GCDs
        ("Intel(R) Data Center GPU Max 1550", 1024, "bf16", 832.0),  # COMPOSITE: a card
        ("Intel(R) Data Center GPU Max 1550", 512, "bf16", 416.0),  # FLAT: a tile
        ("Intel(R) Data Center GPU Max 1550", 448, "bf16", 364.0),  # a tile of Aurora
        ("Intel(R) Data Center GPU Max 1550", 448, "fp32", 22.75),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, "bf16", 312.0 * 42 / 108),
        ("AMD Instinct MI300X", 38, "bf16", 1307.4 / 8),  # CPX: eight devices
        ("NVIDIA A100-SXM-64GB", 124, "bf16", None),  # another chip than that of the data sheet
    ],
)
def test_a_part_of_a_device_has_a_part_of_its_peak(name, units, dtype, expected):
    assert peak_tflops(name, dtype, {}, units) == (expected if expected is None else pytest.approx(expected))


def test_every_rate_is_dense():
    """Sparse figures, twice as high, are what data sheets print first."""
    for peak in PEAKS:
        rates = [rate for rate in (peak.bf16, peak.fp16, peak.tf32, peak.fp32) if rate]
        assert rates == sorted(rates, reverse=True), peak
        assert peak.tf32 is None or peak.bf16 / peak.tf32 == pytest.approx(2, rel=0.02), peak
        assert peak.source.startswith(("NVIDIA", "AMD", "Intel"))


def table() -> str:
    """Return the table of peaks in Markdown, as in docs/numbers.md."""
    lines = ["| device | bf16 | fp16 | tf32 | fp32 | of units | source |", "|---|---|---|---|---|---|---|"]
    for peak in PEAKS:
        rates = (f"{rate:g}" if rate else "-" for rate in (peak.bf16, peak.fp16, peak.tf32, peak.fp32))
        lines.append(f"| {peak.name} | {' | '.join(rates)} | {peak.units or 'any'} | {peak.source} |")
    return "\n".join(lines) + "\n"


def test_the_table_in_the_document_is_this_one():
    assert table() in (ROOT / "docs/numbers.md").read_text()


def test_the_user_knows_better():
    assert peak_tflops("cpu", "fp32", {"MEGADS_PEAK_TFLOPS": "0.05"}) == 0.05
    assert peak_tflops("NVIDIA A100-SXM4-40GB", "bf16", {"MEGADS_PEAK_TFLOPS": "300"}) == 300.0
    assert peak_tflops("NVIDIA A100-SXM4-40GB", "bf16", {"MEGADS_PEAK_TFLOPS": "300"}, units=42) == 300.0


@pytest.mark.parametrize(
    ("name", "dtype", "note"),
    [
        (
            "NVIDIA A100-SXM4-40GB",
            "fp32",
            "products in fp32 without TF32; the peak is 16 times as fast with DTYPE=bf16 and 8 times as fast with "
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 (TF32)",
        ),
        ("AMD Instinct MI250X", "fp32", "products in fp32 without TF32; the peak is 4 times as fast with DTYPE=bf16"),
        (
            "Tesla V100-SXM2-16GB",
            "fp32",
            "products in fp32 without TF32; the peak is 8 times as fast with DTYPE=fp16",
        ),
        (
            "Tesla V100-SXM2-16GB",
            "bf16",
            "Tesla V100-SXM2-16GB has no units for bf16 and emulates it; DTYPE=fp16 is faster",
        ),
        ("Tesla V100-SXM2-16GB", "fp16", ""),
        ("NVIDIA A100-SXM4-40GB", "tf32", ""),
        ("NVIDIA A100-SXM4-40GB", "bf16", ""),
        ("cpu", "fp32", ""),
    ],
)
def test_slow_products_are_said_to_be_slow(name, dtype, note):
    assert slow_products(name, dtype) == note


@pytest.mark.parametrize("given", ["fast", "0", "-1", "inf", "nan"])
def test_an_override_that_is_no_rate_is_refused(given):
    with pytest.raises(ConfigError, match=f"MEGADS_PEAK_TFLOPS={given}: not a positive number"):
        peak_tflops("cpu", "fp32", {"MEGADS_PEAK_TFLOPS": given})
