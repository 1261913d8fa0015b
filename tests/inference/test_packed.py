"""Weights in panels give what they gave before, and the same text alone, in a batch, and in every layout."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.inference import packed
from megads.inference.engine import Engine
from megads.inference.packed import PackedGatedMLP, PackedLinear, pack
from megads.inference.runner import Runner
from megads.inference.sampling import Sampling
from megads.models.gpt import GPT
from tests.inference.test_engine import LAYOUTS, _drawn, assert_as_theirs, expected
from tests.inference.theirs import imported, runner_of
from tests.models.shapes import LLAMA
from tests.ranks import run_ranks

SLOTS = 4


def packed_runner(kind: str, grid: Grid, rank: int, folder: Any = None) -> Runner:
    """Return a runner whose model is in panels of 4, which its small weights have."""
    runner = runner_of(kind, grid, rank, num_slots=SLOTS, folder=folder)
    with patch.multiple(packed, WIDTHS=((0, 4),), LEAST_WIDTH=4):
        assert pack(runner.module, SLOTS)
    return runner


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen3-tied", "olmo2"])
def test_text_and_log_probabilities_equal_transformers(kind):
    runner = packed_runner(kind, Grid(), 0)
    replaced = [each for each in runner.module.modules() if isinstance(each, (PackedLinear, PackedGatedMLP))]
    assert len(replaced) >= 3 * len(runner.module.layers)
    assert_as_theirs(Engine(runner), kind)


def _check(kind: str, grid: Grid, folder: Any, wanted: Any, drawn: Any) -> None:
    runner = packed_runner(kind, grid, dist.get_rank(), folder)
    with patch("tests.inference.test_engine.expected", lambda kind: wanted):
        assert_as_theirs(Engine(runner), kind)
    assert _drawn(Engine(runner), alone=False) == drawn


@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_layouts_equal_transformers_and_draw_the_same_text(kind):
    drawn = _drawn(Engine(runner_of(kind, Grid(), 0)), alone=True)
    grid = LAYOUTS["tp2-pp2"]
    run_ranks(grid.world_size, _check, kind, grid, imported(kind), expected(kind), drawn)


def test_a_seed_gives_the_same_text_packed_or_not_alone_and_in_a_batch():
    plain, runner = runner_of("llama3", Grid(), 0), packed_runner("llama3", Grid(), 0)
    prompts = torch.randint(5, 53, (60, 6), generator=torch.Generator().manual_seed(1)).tolist()
    texts = []
    for engine, at_a_time in ((Engine(plain), 1), (Engine(runner), 1), (Engine(runner), SLOTS)):
        found = []
        for first in range(0, len(prompts), at_a_time):
            for number in range(first, first + at_a_time):
                found.append(engine.add(prompts[number], Sampling(max_tokens=20, seed=number)))
            list(engine.run())
        texts.append([each.output for each in found])
    assert texts[0] == texts[1] == texts[2]


def _model(**sizes: Any) -> GPT:
    given = {"hidden_size": 64, "head_dim": 8, "ffn_hidden_size": 96, "vocab_size": 80, "vocab_multiple": 1}
    model = LLAMA.model_copy(update={**given, "seq_length": 128, **sizes})
    module = GPT(model, Groups(Grid(), 0))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=draw)
    return module.eval()


def test_no_weight_is_held_twice_and_parameters_are_counted_as_before():
    module = _model()
    before = {name: each.numel() for name, each in module.named_parameters()}
    assert pack(module, 8)
    after = {name: each.numel() for name, each in module.named_parameters()}
    renamed = {name.replace("gate_up.weight", "gate_up"): count for name, count in before.items()}
    assert after == renamed
    assert isinstance(module.layers["0"].attention.qkv, PackedLinear)


def test_rows_that_give_no_wide_panels_stay():
    module = _model(vocab_size=83)
    assert pack(module, 8)
    assert not isinstance(module.head, PackedLinear)
    assert isinstance(module.layers["0"].attention.out, PackedLinear)


@pytest.mark.parametrize(("num_slots", "dtype"), [(3, torch.float32), (8, torch.bfloat16), (8, torch.float64)])
def test_what_panels_do_not_make_faster_stays(num_slots, dtype):
    module = _model().to(dtype)
    assert not pack(module, num_slots)
    assert not any(isinstance(each, PackedLinear) for each in module.modules())


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 70)])
def test_any_number_of_rows(shape):
    module, tokens = _model(), torch.randint(80, shape, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        wanted = module(tokens)
        assert pack(module, 8)
        torch.testing.assert_close(module(tokens), wanted, rtol=1e-5, atol=1e-4)
