"""Beam search equals transformers': tokens and scores."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from megads.comm.grid import Grid
from megads.errors import ConfigError
from megads.inference.beam import beam_search
from tests.checkpoint.convert.huggingface.models import their_module
from tests.inference.theirs import imported, prompts, runner_of
from tests.ranks import run_ranks

PROMPT = prompts((5,))[0]
CASES = {
    "plain": {},
    "long": {"length_penalty": 2.0},
    "short": {"length_penalty": -1.0},
    "early": {"early_stopping": True},
}


@cache
def _module() -> Any:
    return their_module("llama3")


def _theirs(eos: tuple[int, ...], **more: Any) -> tuple[list[list[int]], list[float]]:
    module = copy.copy(_module())
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        made = module.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=list(eos) or None,
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
            **more,
        )
    return made.sequences[:, len(PROMPT) :].tolist(), made.sequences_scores.tolist()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("eos", [(52,), (7, 18, 30, 31), (*range(10, 30),)])
def test_beams_equal_transformers(case, eos):
    texts, scores = _theirs(eos, **CASES[case])
    found = beam_search(runner_of("llama3", Grid(), 0), PROMPT, width=4, max_tokens=10, eos=eos, **CASES[case])
    assert [list(each.output) for each in found] == [
        text[: len(each.output)] for text, each in zip(texts, found, strict=True)
    ]
    assert all(set(text[len(each.output) :]) <= {1} for text, each in zip(texts, found, strict=True))
    assert [each.score for each in found] == pytest.approx(scores, rel=1e-6, abs=1e-5)


def _check(grid: Grid, folder: Any, wanted: Any) -> None:
    import torch.distributed as dist

    found = beam_search(
        runner_of("llama3", grid, dist.get_rank(), folder=folder), PROMPT, width=4, max_tokens=10, eos=(7, 18)
    )
    assert [each.output for each in found] == [each.output for each in wanted]
    assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-5)


def test_beams_are_the_same_in_another_layout():
    wanted = beam_search(runner_of("llama3", Grid(), 0), PROMPT, width=4, max_tokens=10, eos=(7, 18))
    run_ranks(4, _check, Grid(tensor=2, pipe=2), imported("llama3"), wanted)


def test_a_width_that_the_cache_has_not():
    with pytest.raises(ConfigError, match="use 1 to 4"):
        beam_search(runner_of("llama3", Grid(), 0), PROMPT, width=5, max_tokens=3)
