"""The check of a device against the CPU: it passes here, and it sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from megads.bench.results import PartResult
from tests.bench.made import bench_of, result_of
from tests.ranks import run_ranks


def _agrees(ranks: int) -> None:
    from megads.bench import agreement

    result = result_of("numbers")
    agreement._dtypes = lambda bench, result: ("fp32", "bf16") if ranks == 1 else ("fp32",)  # type: ignore[assignment]
    agreement.measure(bench_of(ranks), result)
    assert result.wrong == []
    rows = 9 * (2 if ranks == 1 else 1)
    assert [row["equal"] for row in result.rows] == [True] * rows
    # Much smaller than the tolerance, or the tolerance says nothing.
    losses = next(row for row in result.rows if row["check"].startswith("losses"))
    assert losses["difference"] < losses["tolerance"] / 10


@pytest.mark.parametrize("ranks", [1, 2])
def test_this_cpu_computes_what_float64_computes(ranks):
    run_ranks(ranks, _agrees, ranks)


def _sees_wrong_steps() -> None:
    from megads.bench import agreement

    bench = bench_of()
    result = result_of("numbers")
    agreement._dtypes = lambda bench, result: ("fp32",)  # type: ignore[assignment]
    right, train = agreement.operations, agreement.train
    agreement.operations = lambda width: iter(())  # type: ignore[assignment]

    def forgets_a_batch(bench: Any, engine: Any, run: Any, steps: int, first: int = 0) -> Any:
        return [*train(bench, engine, run, steps - 1, first), *train(bench, engine, run, 1, 0)]

    try:
        agreement.train = forgets_a_batch
        agreement.measure(bench, result)
    finally:
        agreement.operations, agreement.train = right, train
    assert len(result.wrong) == 2
    assert result.wrong[0].startswith("losses of 4 steps in fp32 differ by ")


def test_training_that_differs_is_wrong():
    run_ranks(1, _sees_wrong_steps)


def test_operations_that_differ_are_wrong():
    import torch

    from megads.bench.agreement import _judge, difference, operations

    bench = bench_of()
    name, call, inputs = next(operations(8))
    assert difference(bench, "fp32", call, inputs) < 1e-6

    calls = iter((lambda a, b: call(a, b) * 1.001, call))  # the first is the device's
    assert difference(bench, "fp32", lambda a, b: next(calls)(a, b), inputs) == pytest.approx(1e-3, rel=0.01)
    calls = iter((lambda a, b: call(a, b).where(torch.tensor(False), torch.nan), call))
    assert difference(bench, "fp32", lambda a, b: next(calls)(a, b), inputs) == float("inf")

    result: PartResult = result_of("numbers")
    for error in (1e-6, 1.0, float("nan")):
        _judge(bench, result, name, "fp32", error, {"fp32": 2e-5})
    assert [row["equal"] for row in result.rows] == [True, False, False]
    assert len(result.wrong) == 2
