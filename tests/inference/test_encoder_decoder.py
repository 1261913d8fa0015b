"""What a T5 writes equals transformers', and a reference of Megatron's form: alone, in batches, in every layout."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.errors import ConfigError
from megads.inference.beam import Beam, beam_search
from megads.inference.engine import Engine
from megads.inference.packed import PackedGatedMLP, PackedLinear, pack
from megads.inference.sampling import Sampling
from megads.models.cross_attention import CrossAttention
from tests.inference.their_t5 import KINDS, folder_of, greedy, module_of, runner_of, scores_of, texts
from tests.ranks import run_ranks

ALL = (*KINDS, "t5")
NEW = 8
SCORED = Sampling(max_tokens=NEW, temperature=0, logprobs=3, prompt_logprobs=True)
LAYOUTS = {"tp2": Grid(tensor=2), "pp2": Grid(pipe=2), "tp2-pp2": Grid(tensor=2, pipe=2)}
Expected = list[tuple[list[int], Any]]


@cache
def expected(kind: str) -> Expected:
    """Return for every text what is written, and the log-probabilities ``[S, V]`` of each of its places."""
    found = [greedy(kind, text, NEW) for text in texts()]
    assert len(set(map(tuple, found))) == len(found)
    starts = runner_of(folder_of(kind)).start
    return [(each, scores_of(kind, text, [starts, *each[:-1]])) for text, each in zip(texts(), found, strict=True)]


def assert_expected(engine: Engine, wanted: Expected) -> None:
    requests = [engine.add(text, SCORED) for text in texts()]
    assert sum(1 for _ in engine.run()) == len(requests)
    for request, (output, scores) in zip(requests, wanted, strict=True):
        assert request.output == output
        assert request.prompt_scores == []
        for place, score in enumerate(request.scores):
            assert score.logprob == pytest.approx(float(scores[place, score.token]), abs=1e-5)
            best = scores[place].topk(3)
            assert [token for token, _ in score.top] == best.indices.tolist()
            assert [each for _, each in score.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("slots", [1, 3, 5])
@pytest.mark.parametrize("kind", ALL)
def test_greedy_texts_and_log_probabilities_are_another_program_s(kind, slots):
    assert_expected(Engine(runner_of(folder_of(kind), num_slots=slots)), expected(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_transformers_needs_no_import(kind):
    assert_expected(Engine(runner_of(folder_of(kind), source="theirs", num_slots=3)), expected(kind))


@pytest.mark.parametrize("kind", ALL)
def test_panels_change_no_text(kind):
    runner = runner_of(folder_of(kind))
    assert pack(runner.module, 4)
    kinds = {type(each) for each in runner.module.modules()}
    assert PackedLinear in kinds
    assert (PackedGatedMLP in kinds) == (kind == "t5-v1.1")
    assert_expected(Engine(runner), expected(kind))


def _check_layout(grid: Grid, folder: Path, wanted: Expected) -> None:
    runner = runner_of(folder, grid, dist.get_rank(), num_slots=3)
    held = sum(weight.numel() for weight in runner.module.parameters())
    assert held < 0.8 * sum(weight.numel() for weight in runner_of(folder).module.parameters())
    assert_expected(Engine(runner), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ALL)
def test_every_layout_writes_the_same(kind, layout):
    run_ranks(LAYOUTS[layout].world_size, _check_layout, LAYOUTS[layout], folder_of(kind), expected(kind))


def _drawn(engine: Engine, *, alone: bool) -> list[list[int]]:
    found = []
    for seed, text in enumerate(texts()):
        found.append(engine.add(text, Sampling(max_tokens=9, temperature=0.9, top_k=20, top_p=0.95, seed=seed)))
        if alone:
            list(engine.run())
    list(engine.run())
    return [request.output for request in found]


def _check_drawn(grid: Grid, folder: Path, wanted: list[list[int]]) -> None:
    assert _drawn(Engine(runner_of(folder, grid, dist.get_rank())), alone=False) == wanted


def test_a_seed_gives_the_same_text_alone_in_a_batch_and_in_every_layout():
    folder = folder_of("t5-v1.1")
    alone = _drawn(Engine(runner_of(folder)), alone=True)
    assert _drawn(Engine(runner_of(folder)), alone=False) == alone
    assert len(set(map(tuple, alone))) == len(alone)
    for grid in LAYOUTS.values():
        run_ranks(grid.world_size, _check_drawn, grid, folder, alone)


# Beams.


def _their_beams(kind: str, text: list[int], eos: list[int], **more: Any) -> tuple[list[list[int]], list[float]]:
    tokens = torch.tensor([text])
    made = module_of(kind).generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=NEW,
        do_sample=False,
        use_cache=False,
        eos_token_id=eos,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    return made.sequences[:, 1:].tolist(), made.sequences_scores.tolist()


@pytest.mark.parametrize("more", [{}, {"length_penalty": 2.0}, {"early_stopping": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_beams_are_transformers(kind, more):
    runner = runner_of(folder_of(kind))
    for eos, text in (([9], texts()[3]), ([*range(10, 30)], texts()[1])):
        wanted, scores = _their_beams(kind, text, eos, **more)
        found = beam_search(runner, text, width=4, max_tokens=NEW, eos=eos, **more)
        assert [list(each.output) for each in found] == [
            each[: len(mine.output)] for each, mine in zip(wanted, found, strict=True)
        ]
        assert all(set(each[len(mine.output) :]) <= {eos[0]} for each, mine in zip(wanted, found, strict=True))
        assert [each.score for each in found] == pytest.approx(scores, abs=1e-5)


def _check_beams(grid: Grid, folder: Path, wanted: list[Beam]) -> None:
    found = beam_search(runner_of(folder, grid, dist.get_rank()), texts()[3], width=4, max_tokens=NEW, eos=(9,))
    assert [each.output for each in found] == [each.output for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-5)


def test_beams_are_the_same_in_another_layout():
    wanted = beam_search(runner_of(folder_of("t5-v1.1")), texts()[3], width=4, max_tokens=NEW, eos=(9,))
    run_ranks(4, _check_beams, Grid(tensor=2, pipe=2), folder_of("t5-v1.1"), wanted)


# The engine around it.


def test_a_text_is_encoded_once(monkeypatch):
    calls: list[int] = []
    keys = CrossAttention._keys
    monkeypatch.setattr(CrossAttention, "_keys", lambda self, encoded: (calls.append(1), keys(self, encoded))[1])
    runner = runner_of(folder_of("t5-v1.1"))
    beam_search(runner, texts()[3], width=4, max_tokens=NEW)
    assert len(calls) == runner.module.config.decoder_layers
    engine = Engine(runner)
    requests = [engine.add(text, SCORED) for text in texts()[:4]]
    list(engine.run())
    assert len(calls) == 2 * runner.module.config.decoder_layers
    assert all(len(each.output) == NEW for each in requests)


@pytest.mark.parametrize("seed", range(3))
def test_texts_that_come_and_go_do_not_touch_each_other(seed, monkeypatch):
    """Drawn lengths, ends and aborts, in memory that grows: each output is that of the text alone."""
    monkeypatch.setattr("megads.inference.cache.FIRST_CAPACITY", 2)
    kind = ALL[seed % len(ALL)]
    draw, runner = random.Random(seed), runner_of(folder_of(kind), num_slots=3)
    size, most = runner.vocab_size, runner.context
    engine, left = Engine(runner), []
    for _ in range(12):
        text = [draw.randrange(size) for _ in range(draw.randint(1, most))]
        left.append(engine.add(text, Sampling(max_tokens=draw.randint(1, most - 1), temperature=0)))
        for _ in range(draw.randint(0, 6)):
            engine.step()
        if draw.random() < 0.3 and (free := [each for each in left if not each.finish_reason]):
            engine.abort(draw.choice(free))
    list(engine.run())
    alone = Engine(runner_of(folder_of(kind), num_slots=1))
    for each in left:
        again = alone.add(each.source, each.sampling)
        list(alone.run())
        assert again.output[: len(each.output)] == each.output
        assert each.finish_reason == "abort" or again.output == each.output
    assert {each.finish_reason for each in left} == {"abort", "length"}


def test_prompt_and_output_have_a_context_each():
    engine = Engine(runner_of(folder_of("t5")))
    request = engine.add([1] * 16, Sampling(max_tokens=100, temperature=0))
    list(engine.run())
    assert (len(request.output), request.finish_reason) == (15, "length")
    with pytest.raises(ConfigError, match="has 17 tokens and the model a context of 16; use at most 16"):
        engine.add([1] * 17, Sampling())
    with pytest.raises(ConfigError, match="the prompt has no token"):
        engine.add([], Sampling())


def test_an_end_and_penalties_are_those_of_the_output():
    kind, text = "t5-v1.1", texts()[1]
    free = greedy(kind, text, NEW)
    engine = Engine(runner_of(folder_of(kind)), eos=(free[4],))
    request = engine.add(text, Sampling(max_tokens=NEW, temperature=0))
    list(engine.run())
    assert (request.output, request.finish_reason) == (free[: free.index(free[4]) + 1], "stop")
    tokens = torch.tensor([text])
    wanted = module_of("t5-v1.0").generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NEW,
        do_sample=False,
        use_cache=False,
        repetition_penalty=1.7,
    )
    engine = Engine(runner_of(folder_of("t5-v1.0")))
    request = engine.add(text, Sampling(max_tokens=NEW, temperature=0, repetition_penalty=1.7))
    list(engine.run())
    assert request.output == wanted[0, 1:].tolist() != greedy("t5-v1.0", text, NEW)
