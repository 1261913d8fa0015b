"""Adapters on split layers against dense products in float64: outputs and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megads.families.lora import Adapter
from megads.models.lora import AdaptedColumn, AdaptedRow, Options, drawing
from megads.parallel.tensor import Shard, take_shard
from tests.ranks import groups_of, run_ranks

WIDTH, PARTS, RANK, SCALE = 6, (8, 4, 4), 2, 1.5
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ADAPTERS = {
    "apart": Adapter((0, 1, 2), (RANK,) * 3),
    "shared": Adapter((0, 1, 2), (RANK,)),
    "some": Adapter((0, 2), (RANK,) * 2),
    "one": Adapter((1,), (RANK,)),
}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(adapter: Adapter, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return what the adapters add to the weight, part by part."""
    rows, place = [], 0
    outputs = iter(b.split([PARTS[i] for i in adapter.parts]))
    for i, size in enumerate(PARTS):
        if i not in adapter.parts:
            rows.append(torch.zeros(size, WIDTH, dtype=torch.float64))
            continue
        own = a if len(adapter.ranks) < len(adapter.parts) else a[place * RANK : (place + 1) * RANK]
        rows.append(SCALE * next(outputs) @ own)
        place += 1
    return torch.cat(rows)


def _fill(parameter: Any, whole: torch.Tensor, groups: Any) -> None:
    parameter.data = take_shard(whole, parameter.shard, groups.tensor_rank, groups.tensor_size).clone()


def _summed(parameter: Any, groups: Any) -> torch.Tensor:
    """Return a gradient as an engine sees it in the end: split parts joined."""
    import torch.distributed as dist

    found = parameter.grad.contiguous()
    if parameter.shard is None or groups.tensor is None:
        return found
    pieces = [torch.empty_like(found) for _ in range(groups.tensor_size)]
    dist.all_gather(pieces, found, group=groups.tensor)
    from megads.parallel.tensor import join_shards

    return join_shards(pieces, parameter.shard)


def _column_equals_dense(name: str, degree: int, scattered: bool) -> None:
    adapter, groups = ADAPTERS[name], groups_of(tensor=degree)
    outputs = sum(PARTS[i] for i in adapter.parts)
    w, a, b = drawn(16, WIDTH, seed=1), drawn(sum(adapter.ranks), WIDTH, seed=2), drawn(outputs, RANK, seed=3)
    x, up = drawn(2, 4, WIDTH, seed=4), drawn(2, 4, 16, seed=5)
    wanted = [each.clone().requires_grad_() for each in (x, a, b)]
    y = wanted[0] @ (w + dense(adapter, *wanted[1:])).t()
    (y * up).sum().backward()

    layer = AdaptedColumn(
        WIDTH, PARTS, groups.tensor, Options("qkv", adapter, RANK, SCALE), bias=False, scattered=scattered
    )
    for parameter, whole in ((layer.weight, w), (layer.lora_a, a), (layer.lora_b, b)):
        _fill(parameter, whole, groups)
    rows = slice(groups.tensor_rank * 4 // degree, (groups.tensor_rank + 1) * 4 // degree) if scattered else slice(4)
    mine = x[:, rows].clone().requires_grad_()
    found = layer(mine)
    cut = Shard(1, PARTS)
    by_column = [take_shard(each.flatten(0, 1), cut, groups.tensor_rank, degree).view_as(found) for each in (y, up)]
    torch.testing.assert_close(found, by_column[0], **CLOSE)
    (found * by_column[1]).sum().backward()
    torch.testing.assert_close(mine.grad, wanted[0].grad[:, rows], **CLOSE)
    torch.testing.assert_close(_summed(layer.lora_a, groups), wanted[1].grad, **CLOSE)
    torch.testing.assert_close(_summed(layer.lora_b, groups), wanted[2].grad, **CLOSE)


def _row_equals_dense(degree: int, scattered: bool) -> None:
    groups, inner = groups_of(tensor=degree), 8
    w, a, b = drawn(WIDTH, inner, seed=1), drawn(RANK, inner, seed=2), drawn(WIDTH, RANK, seed=3)
    x, up = drawn(2, 4, inner, seed=4), drawn(2, 4, WIDTH, seed=5)
    wanted = [each.clone().requires_grad_() for each in (x, a, b)]
    y = wanted[0] @ (w + SCALE * wanted[2] @ wanted[1]).t()
    (y * up).sum().backward()

    options = Options("out", Adapter((0,), (RANK,)), RANK, SCALE)
    layer = AdaptedRow(inner, WIDTH, groups.tensor, options, bias=False, scattered=scattered)
    for parameter, whole in ((layer.weight, w), (layer.lora_a, a), (layer.lora_b, b)):
        _fill(parameter, whole, groups)
    columns = slice(groups.tensor_rank * inner // degree, (groups.tensor_rank + 1) * inner // degree)
    rows = slice(groups.tensor_rank * 4 // degree, (groups.tensor_rank + 1) * 4 // degree) if scattered else slice(4)
    mine = x[..., columns].clone().requires_grad_()
    found = layer(mine)
    torch.testing.assert_close(found, y[:, rows], **CLOSE)
    (found * up[:, rows]).sum().backward()
    torch.testing.assert_close(mine.grad, wanted[0].grad[..., columns], **CLOSE)
    torch.testing.assert_close(_summed(layer.lora_a, groups), wanted[1].grad, **CLOSE)
    torch.testing.assert_close(_summed(layer.lora_b, groups), wanted[2].grad, **CLOSE)


@pytest.mark.dist
@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize(("degree", "scattered"), [(1, False), (2, False), (2, True), (4, True)])
def test_a_column_with_adapters_equals_a_dense_product(name, degree, scattered):
    run_ranks(degree, _column_equals_dense, name, degree, scattered)


@pytest.mark.dist
@pytest.mark.parametrize(("degree", "scattered"), [(1, False), (2, False), (2, True), (4, True)])
def test_a_row_with_adapters_equals_a_dense_product(degree, scattered):
    run_ranks(degree, _row_equals_dense, degree, scattered)


def test_dropout_is_of_the_adapters_input_and_follows_from_layer_and_place():
    from megads.comm.rng import Draws

    layer = AdaptedRow(8, 8, None, Options("out", Adapter((0,), (8,)), 8, 1.0, dropout=0.5), bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        layer.lora_a.copy_(torch.eye(8))
        layer.lora_b.copy_(torch.eye(8))
    x = torch.ones(1, 16, 8)

    def passed(index: int, seed: int = 1) -> torch.Tensor:
        with drawing(Draws(seed, 0, 0, 0, torch.device("cpu")), index):
            return layer(x)

    first = passed(0)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(first, passed(0))
    assert not torch.equal(first, passed(1))
    assert not torch.equal(first, passed(0, seed=2))
    assert torch.equal(layer.eval()(x), x)
