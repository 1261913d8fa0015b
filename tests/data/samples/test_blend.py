from __future__ import annotations

import numpy as np
import pytest

from megads.errors import DataError
from tests.data.samples.in_memory import blend_index


@pytest.mark.parametrize(
    ("weights", "datasets", "samples"),
    [
        ([0.3, 0.7], "1 0 1 1 0 1 1 0 1 1", "0 0 1 2 1 3 4 2 5 6"),
        ([0.5, 0.3, 0.2], "0 1 2 0 1 0 2 0 1 0 0 1", "0 0 0 1 1 2 1 3 2 4 5 3"),
        ([5, 3, 2], "0 1 2 0 1 0 2 0 1 0 0 1", "0 0 0 1 1 2 1 3 2 4 5 3"),
    ],
)
def test_blend_is_megatrons(weights, datasets, samples):
    dataset_index, sample_index = blend_index(weights, len(datasets.split()))
    assert dataset_index.tolist() == [int(word) for word in datasets.split()]
    assert sample_index.tolist() == [int(word) for word in samples.split()]
    assert [dataset_index.dtype, sample_index.dtype] == ["i2", "i8"]


def _greedy(weights: list[float], size: int) -> list[int]:
    total = sum(weights)
    shares, taken, out = [w / total for w in weights], [0] * len(weights), []
    for i in range(size):
        best, most = 0, shares[0] * max(i, 1) - taken[0]
        for d in range(1, len(shares)):
            lag = shares[d] * max(i, 1) - taken[d]
            if lag > most:
                best, most = d, lag
        taken[best] += 1
        out.append(best)
    return out


@pytest.mark.parametrize("count", [2, 3, 7, 64, 65, 90])
@pytest.mark.parametrize("kind", ["random", "equal"])
def test_blend_equals_the_plain_loop(count, kind):
    weights = [1.0] * count if kind == "equal" else np.random.RandomState(count).rand(count).tolist()
    assert blend_index(weights, 700)[0].tolist() == _greedy(weights, 700)


def test_single_dataset_is_in_order():
    dataset_index, sample_index = blend_index([0.2], 5)
    assert dataset_index.tolist() == [0] * 5
    assert sample_index.tolist() == list(range(5))


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1], []])
def test_wrong_weights(weights):
    with pytest.raises(DataError, match="weights"):
        blend_index(weights, 3)
