"""The kernel that torch takes for attention, by name, and FLOPs of the full square."""

from __future__ import annotations

import pytest

from megads.bench.attention import SHAPES, Shape, kernel_of, measure
from tests.bench.made import bench_of, result_of


def test_every_shape_has_a_kernel_and_a_rate():
    result = result_of("attention")
    measure(bench_of(), result)
    assert [row["shape"] for row in result.rows] == [str(shape) for shape in SHAPES["tiny"]] * 2
    assert {row["kernel"] for row in result.rows} <= {"flash", "math"}
    shape = Shape(1, 4, 4, 64, 16)
    assert shape.flops == 7 * 2 * 4 * 64 * 64 * 16
    assert result.rows[0]["tflops"] == pytest.approx(shape.flops / result.rows[0]["seconds"] / 1e12)


def test_the_name_is_that_of_the_kernel_that_runs():
    import torch

    q = torch.randn(1, 4, 64, 16)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert kernel_of(q, q, q, is_causal=True) == "math"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert kernel_of(q, q, q, is_causal=True) == "flash"
    assert kernel_of(q.double(), q.double(), q.double(), is_causal=True) in ("math", "flash")


def test_a_shape_that_fails_is_a_line_and_the_others_stay(monkeypatch):
    from megads.bench import attention

    def fails(bench, dtype, shape):
        if shape.kv_heads == 2:
            raise RuntimeError("No available kernel")
        return "math", 1e-3

    monkeypatch.setattr(attention, "_time", fails)
    result = result_of("attention")
    measure(bench_of(), result)
    assert len(result.rows) == 2
    assert result.notes == [f"{dtype} 1 x 64, 4/2 heads of 16: No available kernel" for dtype in ("fp32", "bf16")]
