"""Weights in panels, for the CPU's matrix products of few rows.

For 4 to 100 rows MKL's product with a weight as it lies, ``[F, D]``, takes up to twice as long as a batched product
with the same weight in panels: a panel is ``width`` rows of the weight, transposed. The panels are made once, when the
model is loaded, and replace the weight. What they bring by model and batch: docs/inference.md.
"""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.models.gpt import GPT, Block
from megads.models.layers import GatedMLP
from megads.models.t5 import DecoderBlock, EncoderBlock
from megads.parallel.collectives import Group
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear

FEWEST_SLOTS = 4
"""Rows of a decode step from which panels are faster."""
WIDTHS = ((32, 256), (FEWEST_SLOTS, 32))
"""Slots, and the width of a panel that is fastest with so many or more."""
LEAST_WIDTH = 16
"""A weight whose rows only give narrower panels stays as it is."""


def pack(module: GPT, num_slots: int) -> bool:
    """Put the linear layers of a model into panels, one after another, so that no weight is held twice.

    Only where that makes decode steps of up to ``num_slots`` rows faster: fp32 on the CPU. A head that is the
    embedding's table stays as it is. Parameters keep names, types and numbers of elements, not shapes: the model can
    generate, and nothing else.

    Returns:
        whether it did.
    """
    weight = next(module.parameters())
    if num_slots < FEWEST_SLOTS or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    width = next(width for slots, width in WIDTHS if num_slots >= slots)
    for layer in module.layers.values():
        block = cast(Block, layer)
        if isinstance(block, EncoderBlock):  # it has no decode steps
            continue
        if isinstance(block, DecoderBlock):
            _replace(block.cross_attention, "q", width)
            _replace(block.cross_attention, "out", width)
        _replace(block.attention, "qkv", width)
        _replace(block.attention, "out", width)
        if isinstance(block.mlp, GatedMLP) and _fitting(block.mlp.gate_up.weight.shape[0] // 2, width):
            _replace(block.mlp, "down", width)
            block.mlp = PackedGatedMLP(block.mlp, width)
        else:
            for name, _ in list(block.mlp.named_children()):
                _replace(block.mlp, name, width)
    if module.has_head and module.head is not None:
        _replace(module, "head", width)
    return True


def _fitting(rows: int, width: int) -> int:
    """Return the width of the panels of so many rows; 0: too narrow."""
    found = math.gcd(rows, width)
    return found if found >= LEAST_WIDTH else 0


def _replace(parent: nn.Module, name: str, width: int) -> None:
    linear = cast("ColumnParallelLinear | RowParallelLinear", getattr(parent, name))
    if fitting := _fitting(linear.weight.shape[0], width):
        setattr(parent, name, PackedLinear(linear, fitting))


def _panels(weight: Tensor, width: int) -> nn.Parameter:
    """Return ``[F, D]`` as ``[F / width, D, width]``."""
    return nn.Parameter(weight.detach().view(-1, width, weight.shape[1]).transpose(1, 2).contiguous(), False)


def _multiply(x: Tensor, panels: Tensor) -> Tensor:
    """Return ``[n, N, width]`` of ``[..., D]`` with N rows."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) == 1:  # MKL multiplies two rows by a panel faster than one
        return torch.bmm(rows.repeat(2, 1).expand(len(panels), 2, -1), panels)[:, :1]
    return torch.bmm(rows.expand(len(panels), *rows.shape), panels)


def _joined(parts: Tensor, x: Tensor) -> Tensor:
    """Return ``[..., n * width]`` of ``[n, N, width]``, in the shape of the input ``x``."""
    return parts.transpose(0, 1).reshape(*x.shape[:-1], -1)


class PackedLinear(nn.Module):
    """What a :class:`ColumnParallelLinear` or :class:`RowParallelLinear` gives, of whole activations."""

    def __init__(self, linear: ColumnParallelLinear | RowParallelLinear, width: int):
        super().__init__()
        self.weight, self.bias = _panels(linear.weight, width), linear.bias
        self.group: Group = linear.group if isinstance(linear, RowParallelLinear) else None

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., D]`` to ``[..., F]``."""
        y = _joined(_multiply(x, self.weight), x)
        if self.group is not None:
            dist.all_reduce(y, group=self.group)
        # After the sum: a bias added on every rank would count once per rank.
        return y if self.bias is None else y.add_(self.bias)


class PackedGatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``, see :class:`GatedMLP`; panels of gate and up are joined after the product."""

    def __init__(self, mlp: GatedMLP, width: int):
        super().__init__()
        weight, bias = mlp.gate_up.weight, mlp.gate_up.bias
        fitting = _fitting(weight.shape[0] // 2, width)
        self.gate_up = _panels(weight, fitting)
        self.bias = None if bias is None else nn.Parameter(bias.detach().view(-1, 1, fitting), False)
        self.down = mlp.down
        self.act = partial(F.silu, inplace=True) if mlp.act is F.silu else mlp.act

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``."""
        both = _multiply(x, self.gate_up)
        gate, up = (both if self.bias is None else both.add_(self.bias)).chunk(2)
        return self.down(_joined(self.act(gate).mul_(up), x))
