import math

import pytest
import torch

from megads.train.evaluate import evaluate, perplexity


def test_perplexity_is_not_capped():
    assert perplexity(2.0) == pytest.approx(math.exp(2))
    assert perplexity(25.0) == pytest.approx(math.exp(25))
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_a_validation_is_given_up_between_two_batches():
    asked = []

    class Counting:
        def eval_loss(self, batches):
            asked.append("batch")
            return torch.tensor(1.0)

    def give_up():
        asked.append("stop?")
        return asked.count("stop?") == 2

    steps = [[torch.zeros(1, 2)]] * 5
    assert evaluate(Counting(), steps, torch.device("cpu"), give_up) is None
    assert asked == ["batch", "stop?", "batch", "stop?"]
    assert evaluate(Counting(), steps, torch.device("cpu"), lambda: False) == 1.0
