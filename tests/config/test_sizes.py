"""Degrees of the layout, and the heads of a sequence rank."""

from __future__ import annotations

import pytest

from megads.config.schema import ModelConfig, RunConfig
from megads.config.sizes import data_degree, heads_of_rank, layout_text, model_degree
from megads.errors import ConfigError

RUN = RunConfig.model_validate({"parallel": {"tensor": 2, "pipeline": 3}})


def test_ranks_are_split():
    assert (model_degree(RUN), layout_text(RUN)) == (6, "TP=2 x PP=3 x SP=1")
    assert data_degree(RUN, 12) == 2
    with pytest.raises(ConfigError, match=r"8 ranks cannot be split into .* \(= 6\); use a multiple of 6 ranks"):
        data_degree(RUN, 8)
    given = RUN.model_copy(update={"parallel": RUN.parallel.model_copy(update={"data": 4})})
    with pytest.raises(ConfigError, match=r"DP=4, but 12 ranks .* = 2; leave DP unset or use DP=2"):
        data_degree(given, 12)


@pytest.mark.parametrize(
    ("heads", "keys", "ranks", "shares"),
    [
        (8, 8, 4, [(2, 2, True)] * 4),
        (8, 2, 4, [(2, 1, True)] * 4),
        (6, 2, 4, [(2, 1, True), (2, 2, False), (1, 1, True), (1, 1, True)]),
        (1, 1, 2, [(1, 1, True), (0, 0, True)]),
    ],
)
def test_heads_are_dealt_in_runs(heads, keys, ranks, shares):
    model = ModelConfig(num_heads=heads, num_kv_heads=keys)
    assert [(each.queries, each.keys, each.is_even) for each in heads_of_rank(model, 1, ranks)] == shares
