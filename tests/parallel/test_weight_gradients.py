"""Gradients of linear layers' weights that are computed later, against those computed at once."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.parallel.recompute import torch_checkpoint
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear, WholeLinear
from megads.parallel.weight_gradients import LaterGradients, at_once
from tests.ranks import groups_of, run_ranks


class _Pair(nn.Module):
    """A norm, a column and a row layer, as a block has them."""

    def __init__(self, group: dist.ProcessGroup | None, *, scattered: bool = False, bias: bool = True):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = ColumnParallelLinear(6, (8,), group, bias=bias, scattered=scattered)
        self.down = RowParallelLinear(8, 6, group, bias=bias, scattered=scattered)
        self.double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for each in self.parameters():
                each.normal_(generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x)).tanh())


def _inputs(rows: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(rows, 4, 6, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def _gradients(pair: nn.Module, xs: list[Tensor]) -> list[Tensor]:
    found = [each.grad for each in (*xs, *pair.parameters())]
    assert all(each is not None for each in found)
    return found


def _later_equals_at_once(scattered: bool, rows: int, again: bool) -> None:
    group = groups_of(tensor=dist.get_world_size()).tensor if dist.is_initialized() else None
    first, second = (_Pair(group, scattered=scattered) for _ in range(2))
    expected_xs = _inputs(rows)
    for x in expected_xs:
        first(x).square().sum().backward()
    later, xs = LaterGradients(), _inputs(rows)
    with later.active():
        outputs = [torch_checkpoint(second, x) if again else second(x) for x in xs]
        for micro_batch, y in enumerate(outputs):
            with later.collected(micro_batch):
                y.square().sum().backward()
            assert second.norm.weight.grad is not None
        assert second.up.weight.grad is None
        assert second.down.bias.grad is None
        for micro_batch in range(len(xs)):
            later.compute(micro_batch)
    for expected, found in zip(_gradients(first, expected_xs), _gradients(second, xs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
def test_later_equals_at_once_on_one_rank(again: bool) -> None:
    _later_equals_at_once(False, 2, again)


def test_later_equals_at_once_on_tensor_ranks() -> None:
    run_ranks(2, _on_tensor_ranks)


def _on_tensor_ranks() -> None:
    for scattered, rows, again in ((False, 2, False), (True, 2, False), (True, 1, True)):
        _later_equals_at_once(scattered, rows, again)


def test_hooks_fire_when_the_gradient_is_there() -> None:
    pair, later, fired = _Pair(None), LaterGradients(), []
    for name, each in pair.named_parameters():
        # torch calls it also where a backward pass comes by without a gradient.
        each.register_post_accumulate_grad_hook(
            lambda at, name=name: fired.append(name) if at.grad is not None else None
        )
    with later.active():
        y = pair(_inputs()[0])
        with later.collected(0):
            y.sum().backward()
        at_once, _ = set(fired), fired.clear()
        later.compute(0)
    assert at_once == {"norm.weight", "norm.bias"}
    assert sorted(fired[:2]) == ["down.bias", "down.weight"]  # the order of the backward pass
    assert sorted(fired[2:]) == ["up.bias", "up.weight"]


def test_without_a_block_gradients_come_at_once() -> None:
    pair, later = _Pair(None), LaterGradients()
    with later.active():
        pair(_inputs()[0]).sum().backward()
    assert pair.up.weight.grad is not None
    later.compute(0)  # nothing waits


def test_weights_that_are_no_leaves_are_not_put_off() -> None:
    """The gradient of such a weight goes on through autograd."""
    pair, later = _Pair(None), LaterGradients()
    source = torch.ones((), dtype=torch.float64, requires_grad=True)
    weight = pair.up.weight.detach() * source
    del pair.up._parameters["weight"]
    pair.up.weight = weight
    with later.active():
        y = pair(_inputs()[0])
        with later.collected(0):
            y.sum().backward()
    assert source.grad is not None


def test_frozen_weights_are_not_put_off() -> None:
    pair, later = _Pair(None), LaterGradients()
    pair.up.requires_grad_(False)
    with later.active():
        y = pair(_inputs()[0])
        with later.collected(0):
            y.sum().backward()
        later.compute(0)
    assert pair.up.weight.grad is None
    assert pair.down.weight.grad is not None


def test_forgotten_gradients_are_not_computed() -> None:
    pair, later = _Pair(None), LaterGradients()
    with later.active():
        y = pair(_inputs()[0])
        with later.collected(0):
            y.sum().backward()
    later.forget()
    later.compute(0)
    assert pair.up.weight.grad is None


def test_nothing_is_put_off_inside_a_backward_pass_that_needs_it() -> None:
    pair, later = _Pair(None), LaterGradients()
    with later.active():
        y = pair(_inputs()[0])
        with later.collected(0):
            with at_once():
                y.sum().backward()
            assert later.waits_now
    assert pair.up.weight.grad is not None
    with at_once():
        pass


def test_one_active_at_a_time() -> None:
    with LaterGradients().active(), pytest.raises(AssertionError, match="already"), LaterGradients().active():
        pass


def test_layers_of_a_part_of_the_tokens_are_not_put_off() -> None:
    """Their weight is a copy whose gradient is summed on its way to the parameter."""
    run_ranks(2, _whole_linear_over_tensor_ranks)


def _whole_linear_over_tensor_ranks() -> None:
    group = groups_of(tensor=2).tensor
    layer, later = WholeLinear(6, 6, group).double(), LaterGradients()
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    with later.active():
        y = layer(_inputs()[0])
        with later.collected(0):
            y.sum().backward()
    assert layer.weight.grad is not None
