import math

import pytest
import torch

from megads.train.evaluate import HeldOut, evaluate, perplexity


class Losses:
    """An engine whose samples have the losses and counted tokens that are given, one row per global batch."""

    def __init__(self, *rows):
        self.rows = iter(rows)

    def eval_losses(self, batches):
        return torch.tensor(next(self.rows))


def test_perplexity_is_not_capped():
    assert perplexity(2.0) == pytest.approx(math.exp(2))
    assert perplexity(25.0) == pytest.approx(math.exp(25))
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_a_validation_is_given_up_between_two_batches():
    asked = []

    class Counting:
        def eval_losses(self, batches):
            asked.append("batch")
            return torch.tensor([[2.0, 2.0]])

    def give_up():
        asked.append("stop?")
        return asked.count("stop?") == 2

    steps = [[torch.zeros(1, 2)]] * 5
    assert evaluate(Counting(), steps, give_up) is None
    assert asked == ["batch", "stop?", "batch", "stop?"]
    assert evaluate(Counting(), steps, lambda: False) == HeldOut(1.0)


def test_losses_of_corpora_are_weighted_by_counted_tokens_and_the_whole_by_batches():
    """Two batches of three samples; corpus c has no counted token, and d no sample."""
    engine = Losses([[4.0, 2.0], [9.0, 3.0], [0.0, 0.0]], [[1.0, 1.0], [6.0, 1.0], [2.0, 2.0]])
    names = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "a"}
    found = evaluate(engine, [[torch.zeros(3, 2)]] * 2, corpora=["a", "b", "c", "d"], corpus_of=names.__getitem__)
    assert found.loss == pytest.approx((13 / 5 + 9 / 4) / 2)
    assert found.corpora == {"a": pytest.approx((4 + 1 + 2) / (2 + 1 + 2)), "b": pytest.approx((9 + 6) / (3 + 1))}
    assert list(found.row("valid_loss")) == ["valid_loss", "valid_loss/a", "valid_loss/b"]


def test_one_corpus_is_the_whole():
    found = evaluate(Losses([[4.0, 2.0]]), [[torch.zeros(1, 2)]], corpora=["a"], corpus_of=lambda i: "a")
    assert found.row("valid_loss") == {"valid_loss": 2.0}
    assert found.line() == "loss 2.0000, perplexity 7.389"


def test_of_many_corpora_a_line_has_the_worst():
    few = HeldOut(2.0, {"web": 2.5, "code": 1.25})
    assert few.line() == "loss 2.0000, perplexity 7.389 (web 2.5000, code 1.2500)"
    many = HeldOut(2.0, {f"c{i}": i / 10 for i in range(14)})
    assert many.line().endswith("(c13 1.3000, c12 1.2000, c11 1.1000, c10 1.0000, c9 0.9000, 9 lower)")


def test_further_terms_of_the_loss_have_means_of_their_own():
    """Two batches; a sample has one pair, and the numbers of hidden tokens differ."""
    engine = Losses([[4.0, 2.0, 0.5, 1.0], [9.0, 3.0, 0.7, 1.0]], [[1.0, 1.0, 0.9, 1.0], [6.0, 1.0, 0.1, 1.0]])
    engine.loss_names = ("lm_loss", "sop_loss")
    names = {0: "a", 1: "b", 2: "a", 3: "b"}
    found = evaluate(engine, [[torch.zeros(2, 2)]] * 2, corpora=["a", "b"], corpus_of=names.__getitem__)
    assert found.losses == {"lm_loss": pytest.approx((13 / 5 + 7 / 2) / 2), "sop_loss": pytest.approx(0.55)}
    assert list(found.row("valid_loss")) == ["valid_loss", "valid_sop_loss", "valid_loss/a", "valid_loss/b"]
    assert found.corpora == {"a": pytest.approx(5 / 3), "b": pytest.approx(15 / 4)}
    assert HeldOut(2.0, {}, {"sop_loss": 0.69}).line() == "loss 2.0000, perplexity 7.389, sop loss 0.6900"
