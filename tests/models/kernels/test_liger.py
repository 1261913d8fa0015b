"""Liger's kernels in the place of eager functions: the same numbers, or eager. Stand-ins compute as they do, in place.

The kernels themselves run in ``benchmarks/kernels_liger.py``: liger-kernel and Triton are not among what tests need.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from megads.errors import DependencyError
from megads.models.kernels.liger import Liger, load_liger, use_liger
from megads.parallel.documents import Documents, Lengths
from megads.parallel.recompute import Recompute
from tests.models import shapes
from tests.models.kernels.test_compiled import batch, loss_and_gradients
from tests.models.noisy import build
from tests.ranks import groups_of, run_ranks

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, offset: float, casting: str, in_place: bool) -> Tensor:
    assert (offset, casting, in_place) == (0.0, "gemma", False)
    calls.append("rms_norm")
    return F.rms_norm(x, weight.shape, weight, epsilon)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    calls.append("layer_norm")
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def silu_gated(both: Tensor) -> Tensor:
    assert both.ndim == 2
    calls.append("silu_gated")
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


class _GeluGated(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        calls.append("gelu_gated")
        ctx.gate, ctx.up = gate, up
        return F.gelu(gate, approximate="tanh") * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            pair = [each.detach().requires_grad_() for each in (ctx.gate, ctx.up)]
            found = torch.autograd.grad(F.gelu(pair[0], approximate="tanh") * pair[1], pair, grad)
        return ctx.gate.data.copy_(found[0]), ctx.up.data.copy_(found[1])


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    half = x.shape[-1] // 2
    data = x.detach()
    first, second = data[..., :half].clone(), data[..., half:].clone()
    cos, sin = cos[:, None, :, :half], direction * sin[:, None]
    data[..., :half], data[..., half:] = first * cos - second * sin, second * cos + first * sin
    return x


def rope_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    calls.append("rope")
    return _turn(q, cos, sin, 1.0), _turn(k, cos, sin, 1.0), cos, sin


def rope_backward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _turn(q, cos, sin, -1.0), _turn(k, cos, sin, -1.0)


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, *options: object) -> Tensor:
        assert options == (None, -100, 0.0, 0.0, "none")
        assert logits.dtype == torch.float32
        calls.append("cross_entropy")
        shares = logits.detach().log_softmax(dim=-1)
        losses = -shares.gather(1, labels[:, None])[:, 0]
        logits.data.copy_(shares.exp() - F.one_hot(labels, logits.shape[1]))
        ctx.save_for_backward(logits.detach())
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * grad[:, None], None, None, None, None, None, None


LIGER = Liger(
    rms_norm,
    layer_norm,
    silu_gated,
    _GeluGated.apply,
    rope_forward,
    rope_backward,
    lambda *args: (_CrossEntropy.apply(*args), None, None, None),
    (RuntimeError,),
)

MODELS = {
    "llama": (shapes.LLAMA_GQA, {"rms_norm", "silu_gated", "rope", "cross_entropy"}, ""),
    "gpt": (shapes.GPT, {"layer_norm", "cross_entropy"}, "activations without a gate"),
    "t5": (shapes.T5_V11, {"rms_norm", "gelu_gated"}, ""),
}


def agree(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Relative to the norm of each."""
    for ours, plain in zip(found, wanted, strict=True):
        tolerance = 1e-10 if ours.dtype == torch.float64 else 1e-5
        assert torch.linalg.vector_norm(ours - plain) <= tolerance * torch.linalg.vector_norm(plain)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_computes_eagerly(name):
    shape, used, without = MODELS[name]
    model, said = build(shape), []
    if "cross_entropy" in used:  # which computes float32 logits
        model.float()
    tokens = batch(model)
    wanted = loss_and_gradients(model, tokens)
    use_liger([model], said.append, LIGER)
    for _ in range(2):
        agree(loss_and_gradients(model, tokens), wanted)
    assert set(calls) == used
    assert [line for line in said if "agrees with eager" not in line] == (
        [f"liger-kernel has no kernel for, so eager stay: {without}"] if without else []
    )
    assert len([line for line in said if "agrees with eager" in line]) == len(used)


def test_recomputed_layers_of_documents():
    model, said = build(shapes.LLAMA_GQA, recompute=Recompute("full")).float(), []
    tokens = batch(model)
    length = tokens.shape[1]
    positions = torch.arange(length).expand(2, -1).clone()
    positions[1, 5:] -= 5
    documents = Documents(positions=positions, lengths=Lengths(torch.tensor([length, length]), length))
    wanted = loss_and_gradients(model, tokens, documents)
    use_liger([model], said.append, LIGER)
    agree(loss_and_gradients(model, tokens, documents), wanted)
    assert "rope" in calls


def test_logits_and_what_comes_in_stay_as_they_are():
    model = build(shapes.LLAMA_GQA).float()
    use_liger([model], lambda line: None, LIGER)
    logits = torch.randn(2, 3, model.config.vocab_size, requires_grad=True)
    before = logits.detach().clone()
    model.cross_entropy(logits, torch.zeros(2, 3, dtype=torch.int64), model.config.vocab_size - 1).sum().backward()
    assert torch.equal(logits, before)


def test_a_kernel_that_disagrees_is_not_used():
    def wrong(*args: Any) -> Tensor:
        return 1.01 * rms_norm(*args)

    model, said = build(shapes.LLAMA_GQA).float(), []
    tokens = batch(model)
    wanted = loss_and_gradients(model, tokens)
    use_liger([model], said.append, replace(LIGER, rms_norm=wrong))
    agree(loss_and_gradients(model, tokens), wanted)
    assert "RMSNorm stays eager: its result is 1.0e-02 away from eager's, relative to its norm" in said
    assert calls.count("rms_norm") == 2  # whether it runs, and what it gives


def test_a_kernel_that_does_not_run_is_not_used():
    def broken(*args: Any) -> Tensor:
        raise RuntimeError("out of resource: shared memory\nmore")

    model, said = build(shapes.LLAMA_GQA).float(), []
    use_liger([model], said.append, replace(LIGER, silu_gated=broken))
    loss_and_gradients(model, batch(model))
    assert "the gated activation stays eager: its kernel does not run: out of resource: shared memory" in said


def _split_model(is_broken: bool) -> None:
    groups = groups_of(tensor=2)
    model, said = build(shapes.LLAMA_GQA, groups, scatter_norms=True).float(), []
    tokens = batch(model)
    wanted = loss_and_gradients(model, tokens)

    def broken(*args: Any) -> Tensor:
        raise RuntimeError("no memory")

    use_liger([model], said.append, replace(LIGER, rms_norm=broken) if is_broken and dist.get_rank() == 1 else LIGER)
    agree(loss_and_gradients(model, tokens), wanted)
    assert said[0] == "liger-kernel has no kernel for, so eager stay: the loss of split logits"
    assert any(line.startswith("RMSNorm stays eager") for line in said) == is_broken


@pytest.mark.parametrize("is_broken", [False, True])
def test_ranks_that_talk_decide_together(is_broken):
    run_ranks(2, _split_model, is_broken, timeout_s=300)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(DependencyError, match=r"^KERNELS=liger needs the package liger-kernel .* KERNELS=compiled$"):
        load_liger()
