"""Text and log-probabilities equal transformers', alone, in a batch, and in every layout."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.comm.grid import Grid
from megads.errors import ConfigError
from megads.inference.engine import Engine
from megads.inference.sampling import Sampling
from tests.checkpoint.convert.huggingface.models import THEIRS, their_module
from tests.inference.theirs import imported, prompts, runner_of, their_text
from tests.ranks import run_ranks

NEW = 8
SCORED = Sampling(max_tokens=NEW, temperature=0, logprobs=3, prompt_logprobs=True)
LAYOUTS = {"tp2": Grid(tensor=2), "pp2": Grid(pipe=2), "tp2-pp2": Grid(tensor=2, pipe=2)}


@cache
def expected(kind: str) -> list[tuple[list[int], Any]]:
    """Return for every prompt the whole greedy text, and the log-probabilities ``[S, V]`` behind each token."""
    module = their_module(kind)
    texts = [their_text(module, prompt, NEW, do_sample=False)[0] for prompt in prompts()]
    with torch.no_grad():
        return [(text.tolist(), module(text[None]).logits[0].log_softmax(dim=-1)) for text in texts]


def assert_as_theirs(engine: Engine, kind: str) -> None:
    requests = [engine.add(prompt, SCORED) for prompt in prompts()]
    assert sum(1 for _ in engine.run()) == len(requests)
    for request, (text, scores) in zip(requests, expected(kind), strict=True):
        assert [*request.prompt, *request.output] == text
        assert request.finish_reason == "length"
        first, *found = [*request.prompt_scores, *request.scores]
        assert first.logprob is None
        assert len(found) == len(text) - 1
        for place, score in enumerate(found):
            assert score.token == text[place + 1]
            assert score.logprob == pytest.approx(float(scores[place, score.token]), abs=1e-5)
            best = scores[place].topk(3)
            assert [token for token, _ in score.top] == best.indices.tolist()
            assert [each for _, each in score.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_greedy_text_and_log_probabilities_equal_transformers(kind):
    # Three slots for five requests: two wait, and start while others run.
    assert_as_theirs(Engine(runner_of(kind, Grid(), 0, num_slots=3)), kind)


def _as_theirs(rank: int, kind: str, grid: Grid, folder: Any, wanted: Any) -> None:
    engine = Engine(runner_of(kind, grid, rank, num_slots=3, folder=folder))
    held = sum(weight.numel() for weight in engine.runner.module.parameters())
    whole = sum(weight.numel() for weight in runner_of(kind, Grid(), 0, folder=folder).module.parameters())
    assert held < 0.8 * whole
    globals()["expected"] = lambda kind: wanted
    assert_as_theirs(engine, kind)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen3-tied", "olmo2"])
def test_every_layout_equals_transformers(kind, layout):
    grid = LAYOUTS[layout]
    run_ranks(grid.world_size, _check_layout, kind, grid, imported(kind), expected(kind))


def _check_layout(kind: str, grid: Grid, folder: Any, wanted: Any) -> None:
    import torch.distributed as dist

    _as_theirs(dist.get_rank(), kind, grid, folder, wanted)


DRAWN = Sampling(max_tokens=12, temperature=0.9, top_k=20, top_p=0.95, seed=11)


def _drawn(engine: Engine, *, alone: bool) -> list[list[int]]:
    found = []
    for number, prompt in enumerate(prompts()):
        found.append(engine.add(prompt, Sampling(**{**vars(DRAWN), "seed": number})))
        if alone:
            list(engine.run())
    list(engine.run())
    return [request.output for request in found]


def test_a_seed_gives_the_same_text_alone_and_in_a_batch():
    runner = runner_of("llama3", Grid(), 0)
    alone, together = _drawn(Engine(runner), alone=True), _drawn(Engine(runner), alone=False)
    assert alone == together
    assert len(set(map(tuple, alone))) == len(alone)


def _check_drawn(grid: Grid, folder: Any, wanted: Any) -> None:
    import torch.distributed as dist

    assert _drawn(Engine(runner_of("llama3", grid, dist.get_rank(), folder=folder)), alone=False) == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_seed_gives_the_same_text_in_every_layout(layout):
    wanted = _drawn(Engine(runner_of("llama3", Grid(), 0)), alone=False)
    run_ranks(LAYOUTS[layout].world_size, _check_drawn, LAYOUTS[layout], imported("llama3"), wanted)


def test_without_a_seed_texts_differ():
    engine = Engine(runner_of("llama3", Grid(), 0))
    requests = [engine.add([7, 8], Sampling(max_tokens=20)) for _ in range(3)]
    list(engine.run())
    assert len({tuple(each.output) for each in requests}) == 3


def test_an_aborted_request_leaves_the_others_as_they_are():
    engine = Engine(runner_of("llama3", Grid(), 0))
    requests = [engine.add(prompt, SCORED) for prompt in prompts()]
    for _ in range(3):
        engine.step()
    engine.abort(requests[0])
    engine.abort(requests[4])  # it waits
    list(engine.run())
    assert [each.finish_reason for each in requests] == ["abort", "length", "length", "length", "abort"]
    for request, (text, _) in list(zip(requests, expected("llama3"), strict=True))[1:4]:
        assert [*request.prompt, *request.output] == text


def test_an_abort_after_memory_has_grown_leaves_the_others_as_they_are(monkeypatch):
    monkeypatch.setattr("megads.inference.cache.FIRST_CAPACITY", 8)
    engine = Engine(runner_of("llama3", Grid(), 0))
    requests = [engine.add(prompt, SCORED) for prompt in prompts()[:4]]
    for _ in range(4):
        engine.step()
    engine.abort(requests[0])  # the last one takes its place
    list(engine.run())
    for request, (text, _) in list(zip(requests, expected("llama3"), strict=False))[1:]:
        assert [*request.prompt, *request.output] == text


def test_a_text_longer_than_the_first_cache_and_up_to_the_context(monkeypatch):
    monkeypatch.setattr("megads.inference.cache.FIRST_CAPACITY", 8)
    engine = Engine(runner_of("llama3", Grid(), 0))
    requests = [engine.add(prompt, Sampling(max_tokens=100, temperature=0)) for prompt in prompts((3, 30))]
    list(engine.run())
    assert [each.length for each in requests] == [64, 64]
    for request in requests:
        text = their_text(their_module("llama3"), request.prompt, 64 - len(request.prompt), do_sample=False)
        assert [*request.prompt, *request.output] == text[0].tolist()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "the prompt has no token"), ([53], "outside the vocabulary of 53"), ([1] * 64, "a context of 64")],
)
def test_a_prompt_that_cannot_be_continued(prompt, words):
    with pytest.raises(ConfigError, match=words):
        Engine(runner_of("llama3", Grid(), 0)).add(prompt, SCORED)


def test_zero_tokens_score_a_prompt_of_the_whole_context():
    engine = Engine(runner_of("llama3", Grid(), 0))
    request = engine.add([1] * 64, Sampling(max_tokens=0, logprobs=1, prompt_logprobs=True))
    list(engine.run())
    assert (len(request.prompt_scores), request.output, request.finish_reason) == (64, [], "length")


def test_replicas_draw_other_seeds(monkeypatch):
    monkeypatch.setattr("megads.inference.engine.broadcast_value", lambda value: "of rank 0")
    seeds = []
    for replica in range(2):
        groups = SimpleNamespace(world=object(), data_rank=replica)
        parts = {"parts_of": lambda prompt: ((), prompt)}
        engine = Engine(SimpleNamespace(groups=groups, vocab_size=53, context=64, **parts))
        seeds.append(engine.add([1], Sampling()).sampling.seed)
    assert seeds[0] != seeds[1]
