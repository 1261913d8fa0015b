from __future__ import annotations

import pytest

from megads.data.samples.split import split_documents
from megads.errors import DataError


@pytest.mark.parametrize(
    ("split", "n", "borders"),
    [
        ([969, 30, 1], 1000, [0, 969, 999, 1000]),
        ([949, 50, 1], 10, [0, 9, 10, 10]),
        ([1, 1], 5, [0, 2, 5, 5]),  # 2.5 rounds to even
        ([1, 1], 7, [0, 4, 7, 7]),  # 3.5 rounds to even
        ([1], 3, [0, 3, 3, 3]),
        ([0, 1, 1], 4, [0, 0, 2, 4]),
        ([990, 10, 0], 646, [0, 640, 646, 646]),
    ],
)
def test_split_is_megatron_cores(split, n, borders):
    assert split_documents(split, n) == [range(borders[i], borders[i + 1]) for i in range(3)]


@pytest.mark.parametrize("split", [[0, 0, 0], [-1, 2, 0], [float("nan"), 1, 1], [float("inf"), 1, 1]])
def test_wrong_splits(split):
    with pytest.raises(DataError, match="split"):
        split_documents(split, 10)


@pytest.mark.parametrize(
    ("split", "n", "borders"),
    [
        ([969, 30, 1], 1000, [0, 969, 999, 1000]),
        ([1, 1], 5, [0, 3, 5, 5]),  # 2 + 2 lack one: every border moves
        ([1, 1], 7, [0, 3, 7, 7]),  # 4 + 4 are one too many
        ([1, 1, 1], 2, [0, 0, 1, 2]),
        ([949, 50, 1], 10, [0, 10, 10, 10]),  # 9 + 0 + 0 lack one
    ],
)
def test_legacy_split_moves_every_border(split, n, borders):
    assert split_documents(split, n, "legacy") == [range(borders[i], borders[i + 1]) for i in range(3)]


@pytest.mark.parametrize("rule", ["core", "legacy"])
@pytest.mark.parametrize("n", range(40))
def test_every_document_is_in_one_split(rule, n):
    for split in ([969, 30, 1], [1, 1, 1], [1, 2, 0], [0, 0.3, 0.3], [98, 2], [1]):
        ranges = split_documents(split, n, rule)
        assert [i for each in ranges for i in each] == list(range(n))
        assert all(len(each) == 0 for each, share in zip(ranges, split, strict=False) if share == 0 and rule == "core")
