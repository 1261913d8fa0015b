"""The filters are transformers', the draws follow the distribution, and a seed decides them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from megads.errors import ConfigError
from megads.inference.sampling import Sampling, choose, uniform

VOCAB = 40
LOGITS = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(5))


def _counts(sampling: Sampling, draws: int = 4000, **more: list[int]) -> torch.Tensor:
    prompt, output = more.get("prompt", [1]), more.get("output", [])
    rows = LOGITS.expand(draws, -1)
    samplings = [replace(sampling, seed=seed) for seed in range(draws)]
    return choose(rows, samplings, [prompt] * draws, [output] * draws).bincount(minlength=VOCAB)


CASES = {
    "plain": (Sampling(), []),
    "hot": (Sampling(temperature=1.7), [TemperatureLogitsWarper(1.7)]),
    "cold": (Sampling(temperature=0.6), [TemperatureLogitsWarper(0.6)]),
    "top-k": (Sampling(top_k=7), [TopKLogitsWarper(7)]),
    "top-p": (Sampling(top_p=0.8), [TopPLogitsWarper(0.8)]),
    "min-p": (Sampling(min_p=0.1), [MinPLogitsWarper(0.1)]),
    "all": (
        Sampling(temperature=1.5, top_k=12, top_p=0.9, min_p=0.02, repetition_penalty=1.3),
        [
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(1.5),
            TopKLogitsWarper(12),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.02),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution_of_transformers(case):
    sampling, warpers = CASES[case]
    scores = LOGITS[None].clone()
    for warper in warpers:
        scores = warper(torch.tensor([[1, 3, 9]]), scores)
    wanted = scores[0].softmax(dim=-1)
    found = _counts(sampling, prompt=[1, 3], output=[9])
    assert ((found > 0) <= (wanted > 0)).all()
    # 4000 draws: a share is within 5 standard deviations.
    assert ((found / 4000 - wanted).abs() <= 5 * (wanted * (1 - wanted) / 4000).sqrt()).all()


def test_top_p_where_the_most_likely_thousand_do_not_reach_it(monkeypatch):
    whole = _counts(Sampling(top_p=0.97))
    monkeypatch.setattr("megads.inference.sampling.MANY", 3)
    assert _counts(Sampling(top_p=0.97)).equal(whole)


def test_a_tie_at_the_last_of_top_k_keeps_both():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).expand(200, -1)
    samplings = [Sampling(top_k=1, temperature=1, seed=seed) for seed in range(200)]
    assert choose(logits, samplings, [[0]] * 200, [[]] * 200).unique().tolist() == [1]
    two = torch.tensor([[3.0, 2.0, 2.0, 0.0]]).expand(200, -1)
    samplings = [replace(each, top_k=2) for each in samplings]
    assert choose(two, samplings, [[0]] * 200, [[]] * 200).unique().tolist() == [0, 1, 2]


def test_penalties_bias_and_bans_change_the_logits_of_their_row_only():
    logits = torch.zeros(5, 6)
    logits[:, 2] = 1.0
    samplings = [
        Sampling(temperature=0),
        Sampling(temperature=0, logit_bias=((4, 1.5),)),
        Sampling(temperature=0, presence_penalty=1.5),
        Sampling(temperature=0, frequency_penalty=0.6),
        Sampling(temperature=0, banned_pairs=((2, 2),)),
    ]
    chosen = choose(logits, samplings, [[1]] * 5, [[2], [], [2], [2, 2], [2]])
    assert chosen.tolist() == [2, 4, 0, 0, 0]
    assert logits[:, 2].eq(1).all()


def test_top_p_decays_and_is_bounded():
    sampling = Sampling(top_p=0.9, top_p_decay=0.5, top_p_bound=0.2)
    assert [sampling.top_p_of(number) for number in range(4)] == pytest.approx([0.9, 0.45, 0.225, 0.2])


def test_the_number_of_a_draw():
    numbers = [uniform(seed, place) for seed in range(40) for place in range(40)]
    assert len(set(numbers)) == 1600
    assert all(0 <= each < 1 for each in numbers)
    assert sum(numbers) / 1600 == pytest.approx(0.5, abs=0.03)
    # A new version must not draw other texts for old seeds.
    assert uniform(7, 3) == 0.7133945216688186


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", float("nan")), ("top_p", 1.5), ("top_k", -1), ("repetition_penalty", 0)],
)
def test_values_out_of_range(name, value):
    with pytest.raises(ConfigError, match=name):
        Sampling(**{name: value})


@pytest.mark.parametrize("more", [{"temperature": 1e-310}, {"temperature": 1e-310, "top_p": 0.5}, {"top_p": 1e-310}])
def test_extreme_temperatures_choose_the_most_likely_token(more):
    sampling = Sampling(min_p=0.1, seed=3, **more)
    assert choose(LOGITS.unsqueeze(0), [sampling], [[1]], [[]]).tolist() == [int(LOGITS.argmax())]


def test_logits_that_are_nan_still_give_a_token():
    chosen = choose(torch.full((1, VOCAB), torch.nan), [Sampling(min_p=0.1, top_p=0.9, seed=3)], [[1]], [[]])
    assert 0 <= int(chosen) < VOCAB


def test_biases_and_log_probabilities_out_of_range():
    with pytest.raises(ConfigError, match="logit_bias must be finite"):
        Sampling(logit_bias=((1, float("inf")),))
    with pytest.raises(ConfigError, match="logprobs=-1"):
        Sampling(logprobs=-1)
