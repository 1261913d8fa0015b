from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megads.data.datasets import build_splits
from megads.data.samples.index_cache import build
from megads.data.samples.index_cache.build import Team, build_together, share_out
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.mix import OrderRecipe
from megads.data.samples.recipe import ArrayStream
from megads.data.sources.file_list import Shard
from megads.errors import DataError
from megads.train.setup import index_team
from tests.data.factory import make_run, write_dataset
from tests.data.samples.in_memory import read_all
from tests.ranks import groups_of, run_ranks


def team_of(size: int) -> Team:
    """Return the team of ``size`` ranks of one host."""
    groups = groups_of(data=size)
    return index_team(replace(groups, is_first_on_host=groups.rank == 0))


@dataclass(frozen=True)
class Noted(OrderRecipe):
    """Notes in a file which process made it."""

    log: str = ""

    def description(self) -> dict[str, Any]:
        return {**super().description(), "log": self.log}

    def make(self) -> ArrayStream:
        with open(self.log, "a") as file:
            file.write(f"{self.size} {os.getpid()}\n")
        return super().make()


def test_work_is_shared_out_evenly():
    costs = [100, 1, 1, 50, 50, 99, 1, 0, 0, 0, 0]
    owners = share_out(costs, 3)
    load = Counter({rank: 0 for rank in range(3)})
    for cost, rank in zip(costs, owners, strict=True):
        load[rank] += cost
    assert max(load.values()) <= 103
    assert set(share_out([0] * 6, 3)) == {0, 1, 2}
    assert share_out([], 4) == []


def _each_is_built_once(folder: str) -> None:
    team = team_of(3)
    recipes = [Noted(size, 1, log=f"{folder}/log") for size in (5, 9, 100, 7, 9, 3, 50)]
    build_together(recipes, Cache(Path(folder) / "cache"), team)
    built = [line.split() for line in Path(f"{folder}/log").read_text().splitlines()]
    assert sorted(int(size) for size, _ in built) == [3, 5, 7, 9, 50, 100]
    assert len({pid for _, pid in built}) == 3
    assert team.local_rank == min(team.rank, 1)
    build_together(recipes, Cache(Path(folder) / "cache"), team)
    assert len(Path(f"{folder}/log").read_text().splitlines()) == 6


@pytest.mark.dist
def test_ranks_build_each_index_once(tmp_path):
    run_ranks(3, _each_is_built_once, str(tmp_path))


def _hosts_share_nothing(folder: str) -> None:
    """Every rank is alone on its host, with a disk of its own."""
    build._APPEAR_S = 0.2
    team = replace(team_of(3), local_rank=0)
    recipes = [Noted(size, 1, log=f"{folder}/log{team.rank}") for size in (5, 9, 100, 7)]
    plain = [OrderRecipe(recipe.size, 1) for recipe in recipes]
    cache = Cache(Path(folder) / f"cache{team.rank}")
    build_together(plain, cache, team)
    assert all(cache.find(recipe) is not None for recipe in plain)


@pytest.mark.dist
def test_every_host_without_a_shared_disk_builds_its_own(tmp_path):
    run_ranks(3, _hosts_share_nothing, str(tmp_path))


def _one_can_not_write(folder: str) -> None:
    team = team_of(3)
    place = Path(folder) / ("file" if team.rank == 1 else "cache")
    with pytest.raises(DataError, match=r"file: is not a folder; set DATA_CACHE_PATH"):
        build_together([OrderRecipe(size, 1) for size in range(9)], Cache(place), team)


@pytest.mark.dist
def test_the_problem_of_one_rank_ends_all_of_them(tmp_path):
    (tmp_path / "file").write_text("")
    run_ranks(3, _one_can_not_write, str(tmp_path))


def _rank_0_says_what_is_wrong(prefix: str) -> None:
    team = team_of(2)
    with pytest.raises(DataError, match=r"none\.idx: no such file"):
        build_splits(make_run(), [Shard(1, prefix, "c")], team)


@pytest.mark.dist
def test_wrong_data_end_all_ranks_alike(tmp_path):
    run_ranks(2, _rank_0_says_what_is_wrong, str(tmp_path / "none"))


def _samples(cache: str, prefixes: list[str], expected: list[list[int]]) -> None:
    run = make_run(data={"cache_dir": cache})
    shards = [Shard(1 + i, prefix, "ab"[i % 2]) for i, prefix in enumerate(prefixes)]
    train = build_splits(run, shards, team_of(4))["train"]
    assert [train[i].tolist() for i in range(len(train))] == expected


@pytest.mark.dist
def test_samples_do_not_depend_on_the_number_of_ranks(tmp_path):
    prefixes = [write_dataset(tmp_path, [40] * 30, seed=i, name=f"f{i}") for i in range(3)]
    shards = [Shard(1 + i, prefix, "ab"[i % 2]) for i, prefix in enumerate(prefixes)]
    alone = build_splits(make_run(data={"cache_dir": str(tmp_path / "alone")}), shards)["train"]
    expected = [alone[i].tolist() for i in range(len(alone))]
    run_ranks(4, _samples, str(tmp_path / "cache"), prefixes, expected)


def test_one_rank_is_a_team():
    team = Team()
    assert team.from_first(lambda: 7) == 7
    with pytest.raises(DataError, match="wrong"):
        team.together(lambda: _raise("wrong"))
    with pytest.raises(DataError, match="wrong"):
        team.from_first(lambda: _raise("wrong"))


def _raise(text: str) -> None:
    raise DataError(text)


def test_indices_are_equal_whoever_builds_them(tmp_path):
    caches = [Cache(tmp_path / name) for name in "ab"]
    recipe = OrderRecipe(1000, 5)
    arrays = [read_all(cache.get(recipe))["order"] for cache in caches]
    assert np.array_equal(*arrays)
    assert caches[0].path(recipe).read_bytes() == caches[1].path(recipe).read_bytes()
