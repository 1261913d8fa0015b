"""The tokens of every step do not depend on the layout, the micro-batch, the readers, or on being killed."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.data.factory import write_dataset
from tests.ranks import run_ranks

# grid, micro-batch; 4 ranks each
LAYOUTS = [
    ({"data": 4}, 1),
    ({"data": 2, "tensor": 2}, 2),
    ({"data": 2, "seq": 2}, 1),
    ({"pipe": 2, "data": 2}, 2),
    ({"pipe": 2, "tensor": 2}, 4),
    ({"seq": 2, "tensor": 2}, 1),
]
WORKERS = (0, 1, 3)
RAMP = (4, 8, 12, 16)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return three files of two corpora, and what every step of the run reads, taken from the samples by hand."""
    from megads.data.datasets import build_splits
    from megads.data.sources.file_list import Shard
    from tests.parity.order import ITERATIONS, settings

    folder = tmp_path_factory.mktemp("order")
    lengths = [5, 90, 1, 30, 17, 64] * 12
    files = [write_dataset(folder, lengths, seed=i, name=f"file{i}") for i in range(3)]
    shards = [Shard(1.0 + i, prefix, "ab"[i % 2]) for i, prefix in enumerate(files)]
    train: Any = build_splits(settings({}, 1, 0, folder / "cache"), shards)["train"]
    expected, consumed = {}, 0
    for iteration in range(1, ITERATIONS + 1):
        size = next((RAMP[k] for k in range(3) if consumed < 20 * (k + 1)), RAMP[-1])
        if not (4 <= iteration <= 6 or iteration == 15):
            expected[iteration] = [train[consumed + i].tolist() for i in range(size)]
        consumed += size
    assert len(train) == consumed
    assert len({str(step) for step in expected.values()}) == len(expected)
    return shards, expected


def _reads(shards: Any, expected: Any, folder: str, grid: dict[str, int], micro_batch: int, workers: int) -> None:
    from tests.parity.order import one_start, settings

    run = settings(grid, micro_batch, workers, Path(folder) / "cache")
    assert one_start(run, shards, Path(folder), grid) == expected


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_one_rank_reads_what_the_batch_schedule_says(data, tmp_path, micro_batch):
    run_ranks(1, _reads, *data, str(tmp_path), {}, micro_batch, 1)


@pytest.mark.dist
@pytest.mark.parametrize(("grid", "micro_batch"), LAYOUTS, ids=str)
def test_every_layout_and_number_of_readers_reads_the_same(data, tmp_path, grid, micro_batch):
    for workers in WORKERS:
        run_ranks(4, _reads, *data, str(tmp_path / str(workers)), grid, micro_batch, workers)


def _survives(shards: Any, expected: Any, folder: str, kills: int) -> None:
    from tests.parity.order import ITERATIONS, one_start, settings

    rng = random.Random(0)  # the same on both ranks
    # A checkpoint is for one tensor-parallel degree; everything else may change from start to start.
    grids_of_runs = itertools.cycle([[{"data": 2}, {"seq": 2}, {"pipe": 2}], [{"tensor": 2}]])
    died = runs = 0
    while died < kills:
        run_dir, grids, seen = Path(folder) / f"run{runs}", next(grids_of_runs), {}
        while ITERATIONS not in seen:
            grid = rng.choice(grids)
            saves = {"checkpoint.save_interval": "3"}
            run = settings(grid, rng.choice([1, 2]), rng.choice(WORKERS), Path(folder) / "cache", **saves)
            steps = one_start(run, shards, run_dir, grid, die_after=rng.randint(0, 9))
            assert all(expected[iteration] == tokens for iteration, tokens in steps.items())
            seen |= steps
            died += ITERATIONS not in seen
        assert seen == expected
        runs += 1
    assert runs > 1


@pytest.mark.dist
def test_killed_at_20_random_steps_and_resumed_in_another_layout_reads_the_same(data, tmp_path):
    run_ranks(2, _survives, *data, str(tmp_path), 20)
