"""The fast blend is the plain one, whatever the weights."""

from __future__ import annotations

import numpy as np
import pytest

from megads.data.samples import blend
from megads.data.samples.blend import BlendRecipe, walk_plainly
from tests.data.samples.in_memory import collect

random = np.random.RandomState(0)
WEIGHTS = {
    "two": [0.3, 0.7],
    "equal": [1.0] * 8,
    "many equal": [1.0] * 90,
    "rational": [5, 3, 2],
    "random": random.rand(8),
    "skewed": random.rand(14) ** 6,
    "zeros": [0, 0, 1, 0, 2],
    "one has it all": [0, 1, 0],
    "tiny": [0.5, 0.3, 0.2, 1e-4],
    "tiny at the start": [0.6, 1e-9, 0, 1e-6, 0],
    "golden": [1, (1 + 5**0.5) / 2],
    "many": random.rand(70) ** 3,
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a blend has many, of short stretches."""
    for name, value in {"_LANES": 64, "_STEPS": 32, "_FEWEST_STEPS": 32, "_EARLY": 4}.items():
        monkeypatch.setattr(blend, name, value)
    monkeypatch.setattr(blend, "_SHORT", 0)


def _plain(weights: np.ndarray, size: int) -> tuple[list[int], list[int]]:
    picks, taken, _ = walk_plainly(weights, 0, np.zeros(len(weights)), size)
    return picks, taken


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("size", [1, 31, 33, 9001])
def test_blocks_equal_the_plain_walk(name, size, small_blocks):
    weights = np.array(WEIGHTS[name], float) / np.sum(WEIGHTS[name])
    got = collect(BlendRecipe(tuple(weights.tolist()), size))
    assert (got["dataset"].tolist(), got["sample"].tolist()) == _plain(weights, size)


@pytest.mark.parametrize("seed", range(20))
def test_random_weights_equal_the_plain_walk(seed, small_blocks):
    random = np.random.RandomState(seed)
    weights = random.rand(random.randint(2, 20)) ** random.randint(1, 9)
    weights /= weights.sum()
    got = collect(BlendRecipe(tuple(weights.tolist()), 7000))
    assert (got["dataset"].tolist(), got["sample"].tolist()) == _plain(weights, 7000)


def test_wrong_guesses_change_nothing(small_blocks, monkeypatch):
    """Every stretch starts from nonsense: all of them are walked again until they agree."""

    def nonsense(self) -> np.ndarray:
        return np.random.RandomState(1).randint(0, 50, (len(self.weights), len(self.at))).astype(float)

    monkeypatch.setattr(blend._Walk, "_guess", nonsense)
    weights = np.array([0.5, 0.2, 0.3 - 1e-7, 1e-7])
    got = collect(BlendRecipe(tuple(weights.tolist()), 5000))
    assert (got["dataset"].tolist(), got["sample"].tolist()) == _plain(weights, 5000)


def test_long_blends_use_the_real_sizes():
    weights = np.array(WEIGHTS["skewed"]) / np.sum(WEIGHTS["skewed"])
    got = collect(BlendRecipe(tuple(weights.tolist()), 300_000))
    picks, taken = _plain(weights, 300_000)
    assert np.array_equal(got["dataset"], picks)
    assert np.array_equal(got["sample"], taken)
    assert [got["dataset"].dtype, got["sample"].dtype] == ["i2", "u4"]


def test_prefixes_of_a_blend_hold_each_dataset_in_proportion():
    weights = np.array([0.2, 0.5, 0.3])
    datasets = collect(BlendRecipe(tuple(weights.tolist()), 20_000))["dataset"]
    for size in (1, 10, 999, 20_000):
        assert np.abs(np.bincount(datasets[:size], minlength=3) - weights * size).max() < 1
