"""Functions that graphs hold as one operator: the same results and messages, and shapes without messages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function

import megads.timing.collectives as timed
from megads.parallel import opaque as module
from megads.parallel.collectives import by_position, copy_all_to_group, reduce_from_group, scatter_from_group
from megads.parallel.opaque import opaque, opaque_function
from megads.parallel.tensor import _GatherLinear, _ScatterLinear, _SplitLinear
from tests.ranks import run_ranks


@opaque("(Tensor x, int[] sizes, str group) -> Tensor[]")
def _doubled_parts(x: Tensor, sizes: list[int], group: object) -> list[Tensor]:
    assert group is None
    return [2 * part for part in x.split(list(sizes))]


@opaque_function("(Tensor x, Tensor weight, int times, str group) -> Tensor", saved="weight", kept="times")
class _Scaled(Function):
    @staticmethod
    def forward(ctx, x, weight, times, group):
        assert group is None
        ctx.save_for_backward(weight)
        ctx.times = times
        return x * weight * times

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return grad * weight * ctx.times if needs[0] else None, grad.sum() if needs[1] else None, None, None


def test_a_graph_holds_one_operator():
    def run(x: Tensor) -> Tensor:
        first, second = _doubled_parts(x, [1, 2], None)
        return torch.cat([second, first])

    x = torch.arange(3.0)
    graphs = []

    def look(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    assert torch.compile(run, backend=look, fullgraph=True)(x).tolist() == [2.0, 4.0, 0.0] == run(x).tolist()
    assert torch.ops.megads.doubled_parts.default in graphs[0]
    assert torch.split not in graphs[0]


@pytest.mark.parametrize("needed", ["x", "weight", "both"])
def test_a_function_gives_the_gradients_that_are_needed(needed):
    def gradients(function) -> list[Tensor | None]:
        x = torch.arange(3.0, requires_grad=needed != "weight")
        weight = torch.tensor(5.0, requires_grad=needed != "x")
        function(x, weight).sum().backward()
        return [x.grad, weight.grad]

    torch._dynamo.reset()
    plain = gradients(lambda x, weight: _Scaled.apply(x, weight, 3, None))
    compiled = torch.compile(lambda x, weight: _Scaled.apply(x, weight, 3, None), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), plain)
    assert [each is None for each in plain] == [needed == "weight", needed == "x"]


def test_groups_are_named_by_their_axis(monkeypatch):
    monkeypatch.setattr(module, "_GROUPS", {})
    monkeypatch.setattr(module, "_NAMES", {})
    first, second = object(), object()
    module.name_group(None, "tensor")
    module.name_group(first, "tensor")
    module.name_group(second, "tensor")
    module.name_group(first, "seq")  # has a name
    assert {"tensor": first, "tensor1": second} == module._GROUPS


def _operators_match_their_shapes() -> None:
    """Every operator's fake is like what it gives: shapes, types and strides."""
    group = dist.group.WORLD
    module.name_group(group, "test")
    rows, batch, width = 4 * group.size(), 2, 6
    whole, weight = torch.randn(batch, rows, width), torch.randn(8, width)
    mine, bias, grad = torch.randn(batch, 4, width), torch.randn(8), torch.randn(batch, rows, 8)
    name = module._NAMES[group]
    ops, needs = torch.ops.megads, [True, True, True]
    calls = [
        (ops.summed, whole, name),
        (ops.summed_together, [whole, weight], name),
        (ops.scattered, whole, name),
        (ops.gathered, by_position(mine), name),
    ]
    for chunks in (1, 3):
        calls += [
            (ops.split_linear, whole, weight, bias, name, True, chunks),
            (ops.split_linear, whole, weight, None, name, False, chunks),
            (ops.split_linear_backward, grad, needs, whole, weight, name, False, chunks),
            (ops.gather_linear, mine, weight, bias, name, chunks),
            (ops.gather_linear_backward, grad, needs, mine, weight, name, chunks),
            (ops.scatter_linear, whole, weight, bias, name, chunks),
            (ops.scatter_linear_backward, torch.randn(batch, 4, 8), needs, whole, weight, name, chunks),
        ]
    for operator, *args in calls:
        real = operator(*args)
        with FakeTensorMode() as mode:
            fakes = [
                [mode.from_tensor(x) for x in arg] if isinstance(arg, list) and arg is not needs else arg
                for arg in args
            ]
            fake = operator(*(mode.from_tensor(x) if isinstance(x, Tensor) else x for x in fakes))
        pairs = zip(real, fake, strict=True) if isinstance(real, list) else [(real, fake)]
        for ours, shaped in pairs:
            like = (ours.shape, ours.dtype, ours.stride())
            assert like == (shaped.shape, shaped.dtype, shaped.stride()), operator


def test_an_operators_shapes_are_those_of_its_results():
    run_ranks(2, _operators_match_their_shapes, timeout_s=300)


def test_nothing_is_sent_for_shapes():
    x = torch.ones(2)
    with timed.nothing_sent():
        assert timed.all_reduce(x, async_op=True).wait() is None
    assert x.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="process group"):
        timed.all_reduce(x)


def _compiled_collectives() -> None:
    """A graph around them gives what they give, in one message each."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def run(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        x, y = copy_all_to_group((x, y), group)
        mine = scatter_from_group(reduce_from_group(x, group) * y, group)
        gathered = _GatherLinear.apply(mine, weight, None, group, 2)
        scattered = _ScatterLinear.apply(gathered, weight, None, group, 2)
        return _SplitLinear.apply(scattered, weight, None, group, True, 1)

    def results(function) -> list[Tensor]:
        generator = torch.Generator().manual_seed(rank)
        inputs = [
            torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 4, 3), (2, 4, 3), (3, 3))
        ]
        for each in inputs:
            each.requires_grad_()
        out = function(*inputs)
        return [out, *torch.autograd.grad(out.sin().sum(), inputs)]

    torch._dynamo.reset()
    plain = results(run)
    for ours, wanted in zip(results(torch.compile(run, backend="aot_eager", fullgraph=True)), plain, strict=True):
        assert torch.equal(ours, wanted)


def test_collectives_are_one_graph():
    run_ranks(2, _compiled_collectives, timeout_s=300)
