"""Compiled layers: one graph for all of them, the numbers of eager ones, and nothing compiled again unnoticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from megads.models.gpt import GPT, Block
from megads.models.kernels import compiled as module
from megads.models.kernels.compiled import Compiled, compile_layers
from megads.parallel import opaque
from megads.parallel.documents import Documents, Lengths
from megads.parallel.recompute import Recompute
from tests.models import shapes
from tests.models.noisy import ONE, build
from tests.ranks import groups_of, run_ranks

KINDS = {"llama": shapes.LLAMA_GQA, "bert": shapes.BERT, "t5": shapes.T5_V11}


@pytest.fixture(autouse=True)
def new_compiler():
    torch._dynamo.reset()


def batch(model: GPT, rows: int = 2, length: int = 0) -> Tensor:
    config = model.config
    length = length or config.seq_length + config.decoder_seq_length
    return torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


def loss_and_gradients(model: GPT, tokens: Tensor, documents: Documents | None = None) -> list[Tensor]:
    """Return the loss of a causal model, a sum of the output of others, and every gradient."""
    if model.is_causal and not model.config.decoder_layers:
        loss = model(tokens, tokens, documents=documents)
    else:
        out = model(tokens, documents=documents)
        first = out if isinstance(out, Tensor) else out[0]
        loss = (first * torch.arange(first.numel()).cos().view(first.shape)).sum()
    return [loss.detach(), *torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)]


def agree(found: list[Any], wanted: list[Any]) -> None:
    for ours, plain in zip(found, wanted, strict=True):
        assert (ours is None) == (plain is None)
        if plain is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_computes_what_it_computes_eagerly(name):
    kind, said = KINDS[name], []
    documents = (
        Documents(lengths=Lengths(torch.tensor([kind.seq_length, 5]), kind.seq_length)) if name != "llama" else None
    )
    model = build(kind)
    tokens = batch(model)
    wanted = loss_and_gradients(model, tokens, documents)
    compile_layers([model], said.append, backend="aot_eager")
    agree(loss_and_gradients(model, tokens, documents), wanted)
    agree(loss_and_gradients(model, tokens, documents), wanted)
    assert all(line.startswith("compiled ") for line in said), said
    # The encoder's last layer has a norm more.
    assert len(said) == {"llama": 2, "bert": 1, "t5": 3}[name], said


def test_recomputed_layers_are_compiled():
    model = build(shapes.LLAMA, recompute=Recompute("full"))
    tokens, said = batch(model), []
    wanted = loss_and_gradients(model, tokens)
    compile_layers([model], said.append, backend="aot_eager")
    agree(loss_and_gradients(model, tokens), wanted)
    assert [line.split(" for ")[0] for line in said] == ["compiled Block", "compiled the loss"]


def test_shapes_beyond_the_limit_run_eagerly(monkeypatch):
    monkeypatch.setattr(module, "MOST_SHAPES", 2)
    model = build(shapes.LLAMA)
    said: list[str] = []
    compile_layers([model], said.append, backend="eager")
    for rows in (1, 2, 3, 3, 1):
        with torch.no_grad():
            model(batch(model, rows))
    assert [line.split(" in ")[0] for line in said] == [
        "compiled Block for [1, 12, 32] without gradients",
        "compiled Block for [2, 12, 32] without gradients",
        "Block runs eagerly for [3, 12, 32] without gradients: compiled for 2 other shapes already",
    ]


def test_a_function_that_compiles_again_and_again_becomes_eager(monkeypatch):
    numbers = iter(range(100))
    state = {"number": 0}

    def restless(x: Tensor) -> Tensor:
        return x * state["number"]

    said: list[str] = []
    function = Compiled(restless, "it", ONE, said.append, backend="eager")
    for _ in range(8):
        state["number"] = next(numbers)
        assert float(function(torch.ones(1))) == state["number"]
    assert said[-1] == "it stays eager: it was compiled 3 times for the same shapes"
    assert len(said) == 1 + module.MOST_AGAIN + 1


def test_what_cannot_be_compiled_stays_eager():
    def broken(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return 2 * x

    said: list[str] = []
    function = Compiled(broken, "it", ONE, said.append, backend="eager")
    assert float(function(torch.ones(1))) == float(function(torch.ones(1))) == 2.0
    assert len(said) == 1
    assert said[0].startswith("it stays eager: torch cannot compile it: ")


@pytest.mark.parametrize("wrong", ["its result", "a gradient"])
def test_what_disagrees_with_eager_stays_eager(wrong, monkeypatch):
    said: list[str] = []
    function = Compiled(lambda x: 3 * x, "it", ONE, said.append, backend="eager")
    lies = {"its result": lambda x: 3.01 * x, "a gradient": lambda x: 3.01 * x - 0.01 * x.detach()}
    function.compiled = lies[wrong]
    x = torch.ones(2, requires_grad=True)
    assert function(x).tolist() == [3.0, 3.0]
    assert said == [f"it stays eager: {wrong} is 3.3e-03 away from eager's, relative to its norm"]


def _one_rank_disagrees() -> None:
    groups = groups_of(tensor=2)
    said: list[str] = []
    function = Compiled(lambda x: 3 * x, "it", groups, said.append, backend="eager")
    if dist.get_rank() == 1:
        function.compiled = lambda x: 4 * x
    assert function(torch.ones(2, requires_grad=True)).tolist() == [3.0, 3.0]
    assert function.compiled is None
    expected = "another rank does not compile it" if dist.get_rank() == 0 else "its result is 3.3e-01 away"
    assert said[0].startswith(f"it stays eager: {expected}"), said


def test_ranks_that_talk_decide_together():
    run_ranks(2, _one_rank_disagrees, timeout_s=300)


def _split_model_is_compiled(scatter: bool) -> None:
    groups = groups_of(tensor=2)
    model = build(shapes.LLAMA_GQA, groups, scatter_norms=scatter)
    tokens, said = batch(model), []
    wanted = loss_and_gradients(model, tokens)
    compile_layers([model], said.append, backend="aot_eager")
    assert opaque._NAMES[groups.tensor].startswith("tensor")
    agree(loss_and_gradients(model, tokens), wanted)
    assert [line.split(" for ")[0] for line in said] == ["compiled Block"]  # the loss of split logits is not


@pytest.mark.parametrize("scatter", [False, True])
def test_split_layers_are_compiled(scatter):
    run_ranks(2, _split_model_is_compiled, scatter, timeout_s=300)


def test_generation_runs_eagerly():
    model, said = build(shapes.LLAMA), []
    compile_layers([model], said.append, backend="eager")

    class Kept:
        context = 12

        def attend(self, layer: str, q: Tensor, k: Tensor, v: Tensor, bias: None) -> Tensor:
            return q

    layer = model.layers["0"]
    x = torch.randn(1, 2, 32, dtype=torch.float64)
    documents = Documents(cache=Kept())
    torch.testing.assert_close(layer(x, documents), Block.forward(layer, x, documents))
    assert said == []


def _one_rank_cannot_compile(fails: str) -> None:
    groups = groups_of(tensor=2)
    model = build(shapes.LLAMA_GQA, groups, scatter_norms=True)
    tokens, said, warned = batch(model), [], []
    wanted = loss_and_gradients(model, tokens)
    torch._dynamo.reset()

    def broken(graph: Any, example: Any) -> Any:
        raise OSError("no C++ compiler")

    here = broken if dist.get_rank() == 1 else "aot_eager"
    backend = aot_autograd(fw_compiler=_kept, bw_compiler=broken) if fails == "backward" and here is broken else here
    compile_layers([model], said.append, backend=backend, warn=warned.append)
    for _ in range(2):
        agree(loss_and_gradients(model, tokens), wanted)
    if dist.get_rank() == 0:
        assert (said, warned) == (["Block stays eager: another rank does not compile it"], [])
    else:
        assert said == []
        assert warned == [line for line in warned if line.startswith("Block stays eager: torch cannot compile it: ")]
        assert len(warned) == 1
        assert "no C++ compiler" in warned[0]


def _kept(graph: Any, example: Any) -> Any:
    return graph.forward


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_no_rank_runs_what_another_one_cannot_compile(fails):
    """Rank 0's code sums over both ranks, and would wait for rank 1's."""
    run_ranks(2, _one_rank_cannot_compile, fails, timeout_s=120)


def test_all_is_compiled_before_anything_runs(monkeypatch):
    """Nothing is left to compile when the code first runs for real: neither the real arguments nor the gradients."""
    model = build(shapes.LLAMA, recompute=Recompute("full"))
    compile_layers([model], [].append, backend="aot_eager")
    agreed: list[int] = []
    asked = module.failed_ranks

    def note(problem: str, args: Any, groups: Any) -> int:
        agreed.append(module._count("stats", "unique_graphs"))
        return asked(problem, args, groups)

    monkeypatch.setattr(module, "failed_ranks", note)
    loss_and_gradients(model, batch(model))
    assert len(agreed) == 4  # of the layer and the loss, each twice: compiled, and right
    assert agreed[0] == agreed[1]
    assert agreed[2] == agreed[3] == module._count("stats", "unique_graphs")
