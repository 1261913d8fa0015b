"""Each seed changes what it is for, and nothing else."""

from __future__ import annotations

import pytest
import torch

from megads.checkpoint.resume.compatibility import changes
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.data.datasets import build_splits
from megads.data.sources.file_list import Shard
from megads.models.build import build_model
from tests.data.factory import write_dataset
from tests.engine.plain import settings

ALONE = Groups(Grid(), 0)
SEEDS = ("weights_seed", "data_seed", "dropout_seed")


def run_of(folder, **seeds: int) -> RunConfig:
    given = {f"train.{name}": str(value) for name, value in seeds.items()}
    more = {"data.tokenizer_type": "NullTokenizer", "train.eval_interval": "0", "data.cache_dir": str(folder / "cache")}
    return settings({}, **more, **given)


def weights(run: RunConfig) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in build_model(run, ALONE).parameters()])


def order(run: RunConfig, folder) -> list[list[int]]:
    data = build_splits(run, [Shard(1.0, str(folder / "data"), "a")])["train"]
    return [data[i].tolist() for i in range(20)]


def test_zero_means_the_seed_of_everything():
    train = settings({}).train
    assert (train.seed_of_weights, train.seed_of_data, train.seed_of_dropout) == (1234,) * 3
    for name in SEEDS:
        other = train.model_copy(update={name: 7})
        found = {each: getattr(other, f"seed_of_{each.removesuffix('_seed')}") for each in SEEDS}
        assert found == {each: 7 if each == name else 1234 for each in SEEDS}


def test_weights_and_data_have_seeds_of_their_own(tmp_path):
    write_dataset(tmp_path, [50] * 40)
    base = run_of(tmp_path, seed=5)
    first, samples = weights(base), order(base, tmp_path)
    for name in SEEDS:
        other = run_of(tmp_path, seed=5, **{name: 9})
        assert torch.equal(weights(other), first) == (name != "weights_seed")
        assert (order(other, tmp_path) == samples) == (name != "data_seed")
    # SEED stands for those that are not given, and for no other.
    spelled = run_of(tmp_path, seed=9, weights_seed=5, data_seed=5)
    assert torch.equal(weights(spelled), first)
    assert order(spelled, tmp_path) == samples
    assert torch.equal(weights(run_of(tmp_path, seed=9)), weights(run_of(tmp_path, seed=5, weights_seed=9)))


@pytest.mark.parametrize(
    ("seeds", "dropout", "told"),
    [
        ({"weights_seed": 9}, "0.1", []),
        ({"data_seed": 1234, "dropout_seed": 1234}, "0.1", []),
        ({"data_seed": 9}, "0.1", ["had samples in the order of DATA_SEED (0: SEED) 1234, this run in that of 9"]),
        ({"dropout_seed": 9}, "0", []),
        ({"dropout_seed": 9}, "0.1", ["had dropout of DROPOUT_SEED (0: SEED) 1234, this run draws from 9"]),
        ({"seed": 9, "data_seed": 1234}, "0", []),
        ({"seed": 9}, "0.1", ["had samples in the order", "had dropout of"]),
    ],
)
def test_a_resumed_run_says_which_random_numbers_are_others(seeds, dropout, told):
    model = {"model.hidden_dropout": dropout}
    before = settings({}, **model).model_dump()
    for name in SEEDS:  # a checkpoint from before there were these
        del before["train"][name]
    now = settings({}, **model, **{f"train.{name}": str(value) for name, value in seeds.items()})
    lines = list(changes(before, now))
    assert len(lines) == len(told)
    assert all(line.startswith(words) for line, words in zip(lines, told, strict=True))
