"""Collectives: checked before they are timed; groups as those of a run lie; bus bandwidth of nccl-tests."""

from __future__ import annotations

import pytest

from megads.bench.collective_rates import BUS, SIZES, kinds_of_groups, measure
from tests.bench.made import bench_of, result_of
from tests.ranks import run_ranks


def test_groups_are_those_of_tensor_and_data_parallelism():
    assert kinds_of_groups(("a",) * 2) == {"all ranks": [(0, 1)]}
    assert kinds_of_groups(("a",) * 4) == {"all ranks": [(0, 1, 2, 3)], "pairs of a host": [(0, 1), (2, 3)]}
    assert kinds_of_groups(("a", "b")) == {"all ranks": [(0, 1)]}
    two = kinds_of_groups(("a", "a", "b", "b"))
    assert two == {"all ranks": [(0, 1, 2, 3)], "host": [(0, 1), (2, 3)], "across hosts": [(0, 2), (1, 3)]}
    uneven = kinds_of_groups(("a", "a", "a", "b"))
    assert uneven == {"all ranks": [(0, 1, 2, 3)], "host": [(0, 1, 2), (3,)]}


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert {name: factor(4) for name, factor in BUS.items()} == {
        "all_reduce": 1.5,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
        "send/recv": 1.0,
    }


def _rows() -> None:
    result = result_of("collectives")
    measure(bench_of(2), result)
    assert (result.wrong, result.notes) == ([], [])
    assert [(row["collective"], row["bytes"]) for row in result.rows] == [
        (name, size) for size in SIZES["tiny"] for name in BUS
    ]
    for row in result.rows:
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / (row["us"] / 1e6) / 1e9)
        assert row["bus_gb_per_s"] == pytest.approx(row["gb_per_s"] * BUS[row["collective"]](2))


def test_every_collective_and_size_has_a_row():
    run_ranks(2, _rows)


def _wrong() -> None:
    import torch.distributed as dist

    real = dist.all_reduce
    dist.all_reduce = lambda x, *args, **kw: (real(x, *args, **kw), x.add_(1))[0]
    try:
        result = result_of("collectives")
        measure(bench_of(2), result)
    finally:
        dist.all_reduce = real
    assert result.rows == []
    assert result.wrong[0].startswith("all ranks: all_reduce fp32: element 0 is ")


def test_wrong_sums_are_found_before_anything_is_timed():
    run_ranks(2, _wrong)


def test_one_rank_says_how_to_start_several():
    result = result_of("collectives")
    measure(bench_of(), result)
    assert (result.status, result.notes) == ("skipped", ["one rank; start several, e.g. megads bench -n 4"])
