"""A layer that maps each token by itself, a tile of tokens at a time (arXiv 2506.13996, section 3.1.1).

Only the input of the whole is kept. What is inside stands for one tile at a time: in the forward pass, and again in the
backward pass, which computes it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megads.parallel.weight_gradients import at_once


def in_tiles(layer: Callable[[Tensor], Tensor], x: Tensor, tiles: int, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return ``layer(x)``, ``[B, s, H]``, whose tokens are cut into at most ``tiles`` parts, one after the other.

    Gradients of ``parameters``, which must be all that ``layer`` uses, are summed over the tiles in float32 at least,
    and reach each once. Collectives of ``layer`` are one for each tile; ranks that share tokens have as many of them.
    """
    if tiles < 2 or x.shape[1] < 2:
        return layer(x)
    if not torch.is_grad_enabled():
        return _forward(layer, x, tiles)
    return _Tiled.apply(layer, tiles, x, *parameters)


def _tiles(length: int, tiles: int) -> Iterator[slice]:
    step = -(-length // tiles)
    for first in range(0, length, step):
        yield slice(first, min(first + step, length))


def _forward(layer: Callable[[Tensor], Tensor], x: Tensor, tiles: int) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for tile in _tiles(x.shape[1], tiles):
        out[:, tile] = layer(x[:, tile].detach())
    return out


class _Tiled(Function):
    @staticmethod
    def forward(
        ctx: Any, layer: Callable[[Tensor], Tensor], tiles: int, x: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        ctx.save_for_backward(x)
        # Not saved as tensors: an engine may empty and fill a parameter between the passes.
        ctx.layer, ctx.tiles, ctx.parameters = layer, tiles, parameters
        return _forward(layer, x, tiles)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad[2:]
        wanted = [parameter for parameter, need in zip(ctx.parameters, needs, strict=True) if need]
        sums: list[Tensor | None] = [None] * len(wanted)
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_x else None
        for tile in _tiles(x.shape[1], ctx.tiles):
            mine = x[:, tile].detach().requires_grad_(needs_x)
            with torch.enable_grad():
                y = ctx.layer(mine)
            with at_once():  # weights get one gradient of all tiles
                found = torch.autograd.grad(
                    y, [*([mine] if needs_x else []), *wanted], grad[:, tile], allow_unused=True
                )
            del y, mine
            if grad_x is not None:
                grad_x[:, tile] = found[0]
            sums = [_added(total, each) for total, each in zip(sums, found[needs_x:], strict=True)]
            del found
        given = iter(sums)
        found_of = [next(given) if need else None for need in needs]
        typed = [
            each if each is None else each.to(parameter.dtype)
            for each, parameter in zip(found_of, ctx.parameters, strict=True)
        ]
        return None, None, grad_x, *typed


def _added(total: Tensor | None, found: Tensor | None) -> Tensor | None:
    """Return the sum in float32 at least, in place of ``total``."""
    if found is None:
        return total
    if total is not None:
        return total.add_(found)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()
