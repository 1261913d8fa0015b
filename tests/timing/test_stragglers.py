from __future__ import annotations

import random

import pytest

from megads.timing.stragglers import find_stragglers, kinds_of, straggler_line
from tests.engine.plain import settings
from tests.ranks import groups_of, run_ranks


def found(busy_s, kinds=None, ratio=1.2):
    return find_stragglers(busy_s, kinds or [0] * len(busy_s), ratio)


def ranks(result):
    return [each.rank for each in result.stragglers]


def test_a_rank_that_stands_out_is_told_with_its_host():
    busy = [0.290] * 8
    busy[5] = 0.412
    result = found(busy)
    hosts = [f"x{3000 + rank // 4}" for rank in range(8)]
    assert straggler_line(result.stragglers, hosts) == (
        "rank 5 on x3001 computes 1.42 times as long as the median (412 ms against 290 ms)"
    )
    assert result.row() == {"straggler_rank": 5, "straggler_ratio": 0.412 / 0.290}


def test_ranks_of_one_host_are_told_as_the_host():
    busy = [1.0] * 16
    busy[4:8] = [1.5, 1.6, 1.5, 1.5]
    busy[13] = 2.0
    hosts = [f"host{rank // 4}" for rank in range(16)]
    assert straggler_line(found(busy).stragglers, hosts) == (
        "rank 13 on host3 computes 2.00 times as long as the median (2 s against 1 s); "
        "host host1 (4 ranks: 4, 5, 6, 7) computes 1.60 times as long as the median (1.6 s against 1 s)"
    )


def test_ranks_that_scatter_as_they_always_do_are_not_told():
    draw = random.Random(3)
    for _ in range(50):
        result = found([draw.gauss(0.3, 0.02) for _ in range(1000)])
        assert ranks(result) == []
        assert set(result.row()) == {"straggler_ratio"}
        assert result.slowest.ratio > 1


def test_a_wide_scatter_makes_no_stragglers_of_its_edge():
    draw = random.Random(3)
    busy = [draw.uniform(0.1, 0.3) for _ in range(200)]
    assert ranks(found(busy)) == []
    assert ranks(found([*busy, 0.9])) == [200]


def test_pipeline_stages_are_compared_among_themselves():
    busy = [0.1] * 4 + [0.5] * 4
    kinds = [0] * 4 + [1] * 4
    assert ranks(found(busy, kinds)) == []
    busy[2] = 0.2
    assert ranks(found(busy, kinds)) == [2]


def test_of_two_ranks_the_slower_one_is_told():
    assert ranks(found([0.1, 0.3])) == [1]
    assert ranks(found([0.3, 0.1])) == [0]
    assert ranks(found([0.1, 0.11])) == []


def test_a_rank_alone_of_its_kind_has_nobody_to_be_slower_than():
    assert ranks(found([0.1, 0.9], [0, 1])) == []


def test_less_than_a_millisecond_is_not_told():
    assert ranks(found([1e-4, 1e-4, 1e-4, 9e-4])) == []


def test_the_ratio_is_a_setting():
    assert ranks(found([0.1, 0.1, 0.1, 0.15], ratio=1.6)) == []


def test_a_rank_that_measured_nothing_does_no_harm():
    assert ranks(found([0.0, 0.0, 0.0])) == []


def test_many_hosts_make_one_short_line():
    busy = [1.0] * 10_000
    slow = range(0, 10_000, 100)
    for rank in slow:
        busy[rank] = 2.0
    result = found(busy)
    assert ranks(result) == list(slow)
    line = straggler_line(result.stragglers, [f"n{rank // 8}" for rank in range(10_000)])
    assert line.count("computes") == 4
    assert line.endswith("; and 96 more ranks")
    assert len(line) < 500


def test_a_host_of_many_slow_ranks_names_some():
    line = straggler_line(found([1.0] * 24 + [2.0] * 12).stragglers, ["a"] * 24 + ["b"] * 12)
    assert line.startswith("host b (12 ranks: 24, 25, 26, 27, 28, 29, 30, 31, ...) computes 2.00 times")


def _kinds(grid: dict[str, int], changes: dict[str, str], expected: list[int]) -> None:
    found = kinds_of(settings(grid, **changes), groups_of(**grid))
    assert [found.index(kind) for kind in found] == expected


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes", "expected"),
    [
        ({"data": 4}, {}, [0, 0, 0, 0]),
        ({"pipe": 2, "data": 2}, {}, [0, 0, 2, 2]),
        ({"seq": 2, "data": 2}, {}, [0, 0, 0, 0]),
        ({"seq": 2, "data": 2}, {"model.num_heads": "1", "model.num_kv_heads": "1"}, [0, 1, 0, 1]),
        (
            {"tensor": 2, "seq": 2},
            {"model.num_heads": "6", "model.num_kv_heads": "2", "model.hidden_size": "36"},
            [0, 0, 2, 2],
        ),
    ],
)
def test_ranks_that_do_the_same_work_are_of_one_kind(grid, changes, expected):
    run_ranks(4, _kinds, grid, changes, expected)
