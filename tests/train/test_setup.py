"""What a rank needs before it trains: its place among those that build indices, and what its data asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megads.data.samples.index_cache.build import Team
from megads.train.setup import end_of_document, timed
from megads.train.splits import index_team
from tests.engine.plain import settings


@pytest.mark.parametrize(("rank", "local_rank"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)])
def test_ranks_of_one_host_count_in_the_order_of_their_ranks(rank, local_rank):
    groups: Any = SimpleNamespace(rank=rank)
    team = index_team(groups, ["a", "b", "a", "b", "a"])
    assert (team.rank, team.size, team.local_rank) == (rank, 5, local_rank)


def test_one_rank_builds_alone():
    groups: Any = SimpleNamespace(rank=0)
    assert index_team(groups, ["a"]) == Team()


def test_the_end_of_a_document_is_looked_up_where_a_setting_needs_it(monkeypatch):
    monkeypatch.setattr("megads.train.setup.load_tokenizer", lambda run: SimpleNamespace(eod=7))
    assert end_of_document(settings({})) is None
    assert end_of_document(settings({}, **{"data.reset_position_ids": "true"})) == 7


def test_a_block_is_timed():
    timings: dict[str, float] = {}
    with timed(timings, "data"):
        assert timings == {}
    assert 0 <= timings["data"] < 10
