from __future__ import annotations

import numpy as np
import pytest
import torch

from megads.data.datasets import build_splits
from megads.data.loading.batches import Batches, Prefetch
from megads.data.sources.file_list import Shard
from megads.errors import DataError
from tests.data.factory import make_run, write_dataset

STEPS, GLOBAL = 6, 8


@pytest.fixture
def train(tmp_path):
    run = make_run(train={"train_iters": STEPS, "global_batch": GLOBAL, "eval_iters": 0})
    files = [write_dataset(tmp_path, [40] * 30, seed=i, name=f"f{i}") for i in range(3)]
    return build_splits(run, [Shard(1 + i, prefix, "ab"[i % 2]) for i, prefix in enumerate(files)])["train"]


def _steps(train, data_size: int, micro_batch: int, consumed: int = 0) -> list[torch.Tensor]:
    """Return what all ranks together read in each step, samples in dataset order."""
    ranks = [
        Prefetch(Batches(train, micro_batch=micro_batch, data_rank=r, data_size=data_size, consumed=consumed), 0, 1)
        for r in range(data_size)
    ]
    out = []
    for _ in range(STEPS - consumed // GLOBAL):
        micro = [torch.cat([next(rank) for rank in ranks]) for _ in range(GLOBAL // (micro_batch * data_size))]
        out.append(torch.cat(micro))
    return out


@pytest.mark.parametrize(("data_size", "micro_batch"), [(1, 1), (1, 8), (2, 1), (2, 4), (4, 1), (4, 2)])
def test_a_step_reads_the_same_samples_on_any_number_of_ranks(train, data_size, micro_batch):
    expected = [torch.from_numpy(np.stack([train[s * GLOBAL + i] for i in range(GLOBAL)])) for s in range(STEPS)]
    got = _steps(train, data_size, micro_batch)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert got[0].dtype == torch.int64
    assert got[0].shape == (GLOBAL, 9)


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resume_at_any_step_on_another_number_of_ranks(train, step):
    whole = _steps(train, 2, 2)
    resumed = _steps(train, 4, 1, consumed=step * GLOBAL)
    assert all(torch.equal(a, b) for a, b in zip(resumed, whole[step:], strict=True))


def test_running_out_is_an_error(train):
    batches = Batches(train, micro_batch=2, data_rank=0, data_size=2)
    batches.read(STEPS * GLOBAL - 4)
    with pytest.raises(DataError, match="48 samples are consumed, 4 more are needed, 48 were prepared"):
        batches.read(STEPS * GLOBAL)


def test_reading_does_not_move_the_position(train):
    batches = Prefetch(Batches(train, micro_batch=2, data_rank=1, data_size=2, consumed=4), 0, 1)
    later = batches.batches.read(12)
    assert torch.equal(next(batches), torch.from_numpy(np.stack([train[6], train[7]])))
    assert torch.equal(later, torch.from_numpy(np.stack([train[14], train[15]])))


def test_rank_outside_of_the_axis(train):
    with pytest.raises(ValueError, match="data rank 2 of 2"):
        Batches(train, micro_batch=1, data_rank=2, data_size=2)
