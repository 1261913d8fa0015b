"""How a call is timed, and that a failure on one rank is one on every rank."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.made import bench_of
from tests.ranks import run_ranks


def test_short_calls_are_timed_together_and_long_ones_alone(monkeypatch):
    from megads.bench import session

    bench: Any = bench_of()
    sizes: list[int] = []

    def batch(call: Any, calls: int) -> float:
        sizes.append(calls)
        return each

    monkeypatch.setattr(session.Bench, "_batch", lambda self, call, calls: batch(call, calls))
    for each, expected in ((1e-6, [1, 50, 50, 50]), (0.01, [1, 2, 2, 2]), (3.0, [1, 1])):
        sizes.clear()
        assert bench.seconds(lambda: None) == each
        assert sizes == expected


def test_a_time_is_positive():
    assert 0 < bench_of().seconds(lambda: sum(range(1000))) < 10


def _fails_on_rank_1() -> None:
    import torch

    from megads.bench.session import MeasurementFailed

    bench = bench_of(2)
    assert bench.on_all(lambda: bench.groups.rank) == [0, 1]

    def call() -> int:
        if bench.groups.rank == 1:
            raise torch.OutOfMemoryError("out of memory\nTried to allocate")
        return 7

    with pytest.raises(MeasurementFailed, match=r"^rank 1: out of memory$"):
        bench.on_all(call)
    # Rank 0's clock decides, or one rank would go on alone.
    bench.budget.begin("numbers")
    bench.budget._part_ends = float("inf") if bench.groups.rank == 0 else 0.0
    assert bench.goes_on()
    assert bench.on_all_kept(lambda: object()) is not None


def test_a_failure_of_one_rank_is_known_to_all():
    run_ranks(2, _fails_on_rank_1)


def test_a_defect_of_the_program_is_not_taken_for_a_failed_measurement():
    def call() -> None:
        raise AttributeError("a typing error")

    with pytest.raises(AttributeError):
        bench_of().on_all(call)
