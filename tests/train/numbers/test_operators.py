"""The first operator whose result is not finite, by layer, pass and micro-batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megads.train.numbers.operators import FINITE, HAS_INF, HAS_NAN, level, watched, wrong_weight


class Layer(nn.Module):
    """Masks with -Inf, as attention does, and fails where it is told to."""

    def __init__(self, width: int, fails: str = ""):
        super().__init__()
        self.up, self.down, self.fails = nn.Linear(width, width), nn.Linear(width, width), fails

    def forward(self, x: Tensor) -> Tensor:
        scores = self.up(x).masked_fill(torch.ones_like(x).tril() == 0, -math.inf).softmax(dim=-1)
        if self.fails == "forward" and float(x.detach().max()) > 2:
            scores = scores * torch.exp(torch.full_like(scores, 1000.0))
        if self.fails == "backward":
            scores = scores + Root.apply(x)
        return x + self.down(scores)


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / torch.zeros_like(grad)


def model(fails: str = "") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Layer(4), Layer(4, fails), Layer(4))


def watch(module: nn.Module, *batches: Tensor) -> Any:
    with watched([module]) as found:
        for batch in batches:
            module(batch).square().sum().backward()
    return found.verdict()


QUIET, LOUD = torch.full((4, 4), 0.5), torch.full((4, 4), 3.0)


def test_masks_are_no_origin():
    assert watch(model(), QUIET, LOUD) is None


def test_the_operator_of_the_forward_pass_is_named():
    found = watch(model("forward"), QUIET, QUIET, LOUD)
    assert (found.phase, found.layer, found.operator, found.micro_batch) == ("forward", "1", "aten.exp", 2)
    assert (found.value, found.wrong, found.count, found.largest, found.dtype) == ("Inf", 16, 16, 1000.0, "float32")
    assert found.line() == (
        "Inf in 16 of 16 elements of aten.exp in the forward pass of 1, micro-batch 2, which computes with up to 1e+03 "
        "in float32"
    )


def test_the_operator_of_the_backward_pass_is_named():
    found = watch(model("backward"), QUIET, LOUD)
    assert (found.phase, found.operator, found.micro_batch, found.node) == (
        "backward",
        "aten.div.Tensor",
        0,
        "RootBackward",
    )
    assert found.layer.startswith("1")


def test_a_weight_that_is_not_finite_is_named():
    module = model()
    assert wrong_weight([module]) is None
    with torch.no_grad():
        module[2].down.weight[1, 2] = math.nan
    found = wrong_weight([module])
    assert found.line() == "NaN in 1 of 16 elements of the weight 2.down.weight before the step"


def test_nothing_stays_behind():
    module = model("forward")
    watch(module, LOUD)
    before = [hook for each in module.modules() for hook in (*each._forward_hooks, *each._forward_pre_hooks)]
    assert not before
    assert not module(LOUD).isfinite().all()


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.tensor([1.0]), FINITE),
        (torch.tensor([1.0, -math.inf]), HAS_INF),
        (torch.tensor([math.nan, math.inf]), HAS_NAN),
        (torch.tensor([1]), FINITE),
        (torch.zeros(0), FINITE),
        (None, FINITE),
    ],
)
def test_levels(tensor, expected):
    assert level(tensor) == expected
