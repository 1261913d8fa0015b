"""An index that is not what was written is built again, with one line: never a traceback, never other samples."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from megads.data.datasets import build_splits
from megads.data.samples.index_cache import build
from megads.data.samples.index_cache.build import Team, build_together, not_verified
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.mix import OrderRecipe
from megads.data.sources.file_list import Shard
from tests.data.factory import make_run, write_dataset
from tests.data.samples.in_memory import collect, hold, read_all
from tests.data.samples.index_cache.conftest import flip

SEED = random.randrange(10**6)


def test_numbers_above_two_billion_stay_positive(cache, monkeypatch):
    recipe = OrderRecipe(4, 1)
    big = np.array([2**31, 2**32 - 2, 0, 1], np.uint32)
    monkeypatch.setattr(OrderRecipe, "_blocks", lambda self: iter([big]))
    column = cache.get(recipe)["order"]
    assert [column[i] for i in range(4)] == big.tolist() == [int(hold(recipe)["order"][i]) for i in range(4)]


def test_a_run_mends_its_cache_and_reads_the_same_samples(tmp_path, lines):
    run = make_run(data={"cache_dir": str(tmp_path / "cache")})
    shards = [Shard(1, write_dataset(tmp_path, [40] * 30), "c")]
    first = build_splits(run, shards)["train"]
    expected = [first[i].tolist() for i in range(len(first))]
    files = sorted((tmp_path / "cache" / "index").iterdir())
    for number, path in enumerate(files):
        flip(path, 8 * path.stat().st_size - 1 - 37 * number)
    again = build_splits(run, shards)["train"]
    assert [again[i].tolist() for i in range(len(again))] == expected
    assert len(lines()) == len(files) > 1
    assert sorted((tmp_path / "cache" / "index").iterdir()) == files


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, size: int):
        self.size, self.said = size, [[None] * size for _ in range(2)]
        self.meet = threading.Barrier(size, timeout=100)

    def team(self, rank: int, local_rank: int) -> Team:
        return Team(rank, self.size, local_rank, lambda value: self._all(rank, value)[0], lambda t: self._all(rank, t))

    def _all(self, rank: int, value: Any) -> list[Any]:
        self.said[0][rank] = value
        self.meet.wait()
        found = list(self.said[0])
        self.meet.wait()
        return found

    def run(self, work: Any) -> None:
        failed: list[BaseException] = []

        def guarded(rank: int) -> None:
            try:
                work(rank)
            except BaseException as error:
                failed.append(error)
                self.meet.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(self.size)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if failed:
            raise failed[0]


def _caches(monkeypatch, folders: list[Path], local_ranks: list[int], recipes: list[OrderRecipe]) -> dict[int, int]:
    """Let ranks build together; return how many files each rank has read."""
    read = dict.fromkeys(range(len(folders)), 0)
    verify = Cache.verify

    def noted(self: Cache, recipe: Any, step: Any = abs) -> bool:
        if threading.current_thread().name.isdigit():
            read[int(threading.current_thread().name)] += 1
        return verify(self, recipe, step)

    monkeypatch.setattr(Cache, "verify", noted)
    threads = Threads(len(folders))

    def work(rank: int) -> None:
        threading.current_thread().name = str(rank)
        build_together(recipes, Cache(folders[rank]), threads.team(rank, local_ranks[rank]))

    threads.run(work)
    return read


def test_ranks_share_the_reading_of_a_cache_that_all_of_them_see(tmp_path, monkeypatch, lines):
    recipes = [OrderRecipe(size, 1) for size in range(100, 112)]
    cache = Cache(tmp_path / "index")
    for recipe in recipes:
        cache.get(recipe)
    for recipe in recipes[3:5]:
        flip(cache.path(recipe), 8 * cache.path(recipe).stat().st_size - 5)
    read = _caches(monkeypatch, [cache.folder] * 4, [0, 1, 0, 1], recipes)
    assert read == dict.fromkeys(range(4), 3)
    assert len(lines()) == 2
    assert all(np.array_equal(read_all(cache.get(each))["order"], collect(each)["order"]) for each in recipes)
    assert len(list(cache.folder.iterdir())) == len(recipes)


def test_a_host_with_a_folder_of_its_own_reads_all_of_it(tmp_path, monkeypatch, lines):
    recipes = [OrderRecipe(size, 1) for size in range(100, 106)]
    shared, own = Cache(tmp_path / "shared"), Cache(tmp_path / "own")
    for recipe in recipes:
        shared.get(recipe)
        own.get(recipe)
    flip(own.path(recipes[2]), 8 * own.path(recipes[2]).stat().st_size - 5)
    read = _caches(monkeypatch, [shared.folder, shared.folder, own.folder, own.folder], [0, 1, 0, 1], recipes)
    assert read == {0: 3, 1: 3, 2: 6, 3: 0}
    assert len(lines()) == 1
    assert str(own.folder) in lines()[0]
    assert not not_verified(recipes, own, 2)


def test_a_line_says_how_far_long_work_is(monkeypatch, lines):
    monkeypatch.setattr(build, "FIRST_S", 0.05)
    monkeypatch.setattr(build, "EVERY_S", 0.05)
    with build.Progress("sample indices (2 to build)", 200) as shown:
        shown.step(100)
        until = time.monotonic() + 60
        while not any("50 %" in line for line in lines()) and time.monotonic() < until:
            time.sleep(0.02)
    assert re.fullmatch(r"sample indices \(2 to build\): 50 %, \d+ s, ETA \d+ s", lines()[-1])


ROOT = Path(__file__).parents[4]
_POOL = """
import sys
from tests.data.samples.index_cache.test_cache import Slow
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.index_cache.build import build_in_pool
from pathlib import Path
if __name__ == "__main__":
    recipes = [Slow(f"{sys.argv[1]}/log{i}", 10**6, 0.01) for i in range(2)]
    list(build_in_pool(recipes, Cache(Path(sys.argv[1]) / "index"), 2))
"""


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "pool.py").write_text(_POOL)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "pool.py"), str(tmp_path)], env=env)
    logs = [tmp_path / f"log{i}" for i in range(2)]
    until = time.monotonic() + 60
    while not all(log.exists() and log.read_text().endswith("\n") for log in logs) and time.monotonic() < until:
        time.sleep(0.05)
    workers = [int(log.read_text()) for log in logs]
    assert all(map(_is_running, workers))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 60
    while any(map(_is_running, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_is_running, workers))
