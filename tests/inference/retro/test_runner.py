"""Generation with neighbours equals the whole forward pass, token by token; in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.inference.engine import Engine
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.retro.runner import RetroRunner
from megads.inference.sampling import Sampling
from megads.parallel.documents import Documents, Neighbors
from tests.models.noisy import ONE, build
from tests.models.shapes import RETRO
from tests.ranks import run_ranks

# Room for ten chunks of four tokens; two layers look at neighbours, the ninth is the second.
MODEL = RETRO.model_copy(update={"num_layers": 9, "seq_length": 40, "max_positions": 40})
CHUNK, K, R = 4, 2, 8
GREEDY = Sampling(temperature=0.0, max_tokens=23, ignore_eos=True, logprobs=0)


def module_of(groups: Groups = ONE, **changes: object):
    return build(MODEL.model_copy(update=changes), groups).double().eval().requires_grad_(False)


def drawn(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(53), k=count)


class Noted:
    """Neighbours that follow from the chunk's number and its tokens, which are noted."""

    def __init__(self, seed: int):
        self.seed, self.asked = seed, []

    def __call__(self, chunk: int, tokens: Sequence[int]) -> np.ndarray:
        self.asked.append((chunk, tuple(tokens)))
        rng = np.random.RandomState([self.seed, chunk, *tokens])
        return rng.randint(0, 53, (K, R))


@torch.inference_mode()
def whole(module, prompt: Sequence[int], source: NeighborSource | None, count: int) -> tuple[list[int], list[float]]:
    """Return the most likely tokens and their log-probabilities, each of a forward pass of all tokens before it."""
    tokens, scores = list(prompt), []
    for _ in range(count):
        chunks = len(tokens) // CHUNK if source else 0
        texts = [source(c, tokens[c * CHUNK : (c + 1) * CHUNK]).reshape(-1) for c in range(chunks)]
        documents = Documents(encoder_tokens=len(tokens), neighbors=Neighbors(K))
        x = module.embed(torch.tensor([[*tokens, *(int(each) for text in texts for each in text)]]), documents)
        for layer in module.layers.values():
            x = layer(x, documents)
        logits = module.logits(x)[0, -1, :53].log_softmax(-1)
        tokens.append(int(logits.argmax()))
        scores.append(float(logits.max()))
    return tokens[len(prompt) :], scores


def _engine(module, groups=ONE, num_slots=3) -> Engine:
    return Engine(RetroRunner(module, groups, context=40, num_slots=num_slots))


PROMPTS = [(1, 0, 9), (3, 1, 23), (4, 2, 17), (9, 3, 14), (15, 4, 23)]
"""Tokens, the seed of the neighbours (0: none), and tokens to generate: slots become free one by one."""


def check_against_whole(module, groups=ONE, expected=None) -> list:
    """Generate for five prompts in three slots, and compare; of several ranks with one rank's."""
    engine = _engine(module, groups)
    sources = [Noted(seed) if seed else None for _, seed, _ in PROMPTS]
    requests = [
        engine.add(drawn(length, length), replace(GREEDY, max_tokens=count), source)
        for (length, _, count), source in zip(PROMPTS, sources, strict=True)
    ]
    list(engine.run())
    found = [(each.output, [score.logprob for score in each.scores]) for each in requests]
    for number, ((length, seed, count), request) in enumerate(zip(PROMPTS, requests, strict=True)):
        if expected is None:
            tokens, scores = whole(module, drawn(length, length), Noted(seed) if seed else None, count)
        else:
            tokens, scores = expected[number]
        assert request.output == tokens
        assert [each.logprob for each in request.scores] == pytest.approx(scores, abs=1e-10)
        if sources[number]:
            # Every chunk is looked up once, when it is whole.
            text = [*request.prompt, *request.output[:-1]]
            parts = [tuple(text[c * CHUNK : (c + 1) * CHUNK]) for c in range(len(text) // CHUNK)]
            assert sources[number].asked == list(enumerate(parts))
    return found


def test_tokens_and_probabilities_are_those_of_the_whole_forward_pass():
    torch.manual_seed(0)
    found = check_against_whole(module_of())
    without = _engine(module_of())
    request = without.add(drawn(15, 15), GREEDY)
    list(without.run())
    assert request.output != found[-1][0]  # neighbours change something


def test_a_closed_gate_and_no_neighbours_are_the_same_and_nothing_is_looked_up():
    outputs = []
    for gate, source in ((0.0, Noted(1)), (1.0, None), (0.0, None)):
        engine = _engine(module_of(retro_attention_gate=gate))
        request = engine.add(drawn(9, 9), GREEDY, source)
        list(engine.run())
        outputs.append([score.logprob for score in request.scores])
        assert source is None or not source.asked
    assert outputs[0] == outputs[1] == outputs[2]


def test_half_a_gate_and_grouped_heads():
    for changes in ({"retro_attention_gate": 0.5}, {"num_kv_heads": 4}, {"position_embedding": "rope"}):
        module = module_of(**changes)
        engine = _engine(module)
        request = engine.add(drawn(6, 6), GREEDY, Noted(5))
        list(engine.run())
        tokens, scores = whole(module, drawn(6, 6), Noted(5), GREEDY.max_tokens)
        assert request.output == tokens
        assert [each.logprob for each in request.scores] == pytest.approx(scores, abs=1e-10)


def _two_ranks(expected: list) -> None:
    groups = make_groups(Grid(tensor=2), torch.distributed.get_rank())
    torch.manual_seed(0)
    check_against_whole(module_of(groups), groups, expected)


@pytest.mark.dist
def test_two_tensor_ranks_give_the_same_tokens():
    torch.manual_seed(0)
    expected = check_against_whole(module_of())
    run_ranks(2, _two_ranks, expected)
