"""Rows of matrix products, and what is dropped without time."""

from __future__ import annotations

import pytest

from megads.bench.matmul import dtypes, measure
from tests.bench.made import bench_of, result_of


def test_every_dtype_and_shape_has_a_row():
    bench, result = bench_of(peaks=lambda dtype: 2.0), result_of("matmul")
    measure(bench, result)
    assert {row["dtype"] for row in result.rows} == set(dtypes(bench))
    assert len(result.rows) == 6
    for row in result.rows:
        m, k, n = (int(word) for word in row["shape"].split(" x "))
        assert row["tflops"] == pytest.approx(2 * m * n * k / row["seconds"] / 1e12)
        assert row["of_peak"] == pytest.approx(row["tflops"] / 2)


def test_what_has_no_time_is_dropped_with_a_line():
    bench, result = bench_of(total_s=0.0), result_of("matmul")
    bench.budget.begin("matmul")
    measure(bench, result)
    assert (result.rows, result.status, result.notes) == ([], "partial", ["6 shapes dropped: no time left"])
