"""Norms and the MLP of a decoder block, and the place of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.groups import Groups
from megads.comm.rng import Draws
from megads.families.lora import A, Adapted, adapter_of, scale_of
from megads.families.spec import Parameter
from megads.models.lora import AdaptedColumn, AdaptedRow, Options
from megads.parallel.collectives import copy_to_group, partial_over, reduce_from_group, with_summed_gradient
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear, Shard, parameter
from megads.parallel.tiles import in_tiles


@dataclass(frozen=True)
class Context:
    """What the layers of a model share.

    Attributes:
        groups: the grid's process groups.
        recompute: what is computed again in the backward pass.
        scatter_norms: whether activations between the split layers are cut along the sequence
            over the tensor-parallel ranks (arXiv 2205.05198).
        tp_overlap: chunks in which a split layer's collectives and products overlap, see ``megads.parallel.overlap``.
        adapted: the settings that decide the adapters; None: there are none.
        adapter_dropout: of the adapters' input.
    """

    groups: Groups
    recompute: Recompute = field(default_factory=Recompute)
    scatter_norms: bool = False
    tp_overlap: int = 1
    adapted: Adapted | None = None
    adapter_dropout: float = 0.0

    @property
    def scattered_over(self) -> dist.ProcessGroup | None:
        """The group over which norms, dropout and residual are cut; None: they are whole."""
        return self.groups.tensor if self.scatter_norms else None

    def dropout(self, x: Tensor, probability: float, draws: Draws | None, *place: object) -> Tensor:
        """Return ``x``, an activation between the split layers, with dropout.

        Whole activations are dropped the same way on every tensor rank, scattered ones are not.

        Args:
            place: the parts of its name; joined where it is needed, so that compiled code serves every layer.
        """
        if probability == 0:
            return x
        if draws is not None:
            draws.begin(".".join(map(str, place)), is_split=self.scattered_over is not None)
        return F.dropout(x, probability)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last dimension (arXiv 1910.07467).

    ``group``: ranks that normalise a part of the tokens or heads each and sum the weight's gradient.
    """

    def __init__(self, width: int, epsilon: float, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.epsilon = epsilon
        self.weight = parameter((width,), None)
        partial_over(self.weight, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own shape and type."""
        (weight,) = with_summed_gradient(self.weight)
        return F.rms_norm(x, weight.shape, weight, self.epsilon)


class SplitRMSNorm(nn.Module):
    """:class:`RMSNorm` over all heads of queries or keys, which are split over tensor-parallel ranks.

    Rank ``i`` holds the heads and weights of its slice; ranks sum the squares of a token, one all-reduce
    of ``[B, s, 1]`` in the forward and one in the backward pass.
    """

    def __init__(self, width: int, epsilon: float, group: dist.ProcessGroup | None):
        super().__init__()
        self.width, self.epsilon, self.group = width, epsilon, group
        self.weight = parameter((width,), Shard(0, (width,)), group)

    def forward(self, heads: Tensor) -> Tensor:
        """Return ``[B, s, heads / t, D]`` normalised over all heads, in its own type."""
        x = heads.flatten(2)
        if self.group is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon).view_as(heads)
        wide = x if x.dtype == torch.float64 else x.float()
        # Every rank uses the sum, so the sum's gradients are summed as well.
        squares = copy_to_group(reduce_from_group(wide.square().sum(dim=-1, keepdim=True), self.group), self.group)
        normalised = wide * torch.rsqrt(squares / self.width + self.epsilon)
        return (normalised * self.weight).to(x.dtype).view_as(heads)


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension (arXiv 1607.06450).

    ``group``: ranks that normalise a part of the tokens each and sum both gradients, in one call.
    """

    def __init__(self, width: int, epsilon: float, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.epsilon = epsilon
        self.weight, self.bias = parameter((width,), None), parameter((width,), None)
        partial_over(self.weight, group)
        partial_over(self.bias, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own shape and type."""
        weight, bias = with_summed_gradient(self.weight, self.bias)
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)


Layer = Mapping[str, Parameter]
"""The parameters of a layer by name, see ``megads.families.spec``; those of the last step likewise."""


def make_norm(name: str, layer: Layer, epsilon: float, context: Context) -> nn.Module:
    """Return the norm ``name``, of the width of the residual stream."""
    kind = LayerNorm if f"{name}.bias" in layer else RMSNorm
    return kind(layer[f"{name}.weight"].size, epsilon, context.scattered_over)


def make_head_norm(name: str, layer: Layer, epsilon: float, context: Context) -> nn.Module | None:
    """Return the norm of queries or keys; None where ``layer`` has none. Ranks normalise their own heads."""
    weight = layer.get(f"{name}.weight")
    if weight is None:
        return None
    kind = RMSNorm if weight.dim is None else SplitRMSNorm
    return kind(weight.size, epsilon, context.groups.tensor)


def make_column(name: str, layer: Layer, context: Context) -> ColumnParallelLinear:
    """Return the projection ``name`` of ``layer``, whose output features are cut."""
    weight, bias = layer[f"{name}.weight"], f"{name}.bias" in layer
    group, scattered, chunks = context.groups.tensor, context.scatter_norms, context.tp_overlap
    sizes = weight.shape[1], weight.parts, group
    if options := _adapters(name, layer, context):
        return AdaptedColumn(*sizes, options, bias=bias, scattered=scattered, chunks=chunks)
    return ColumnParallelLinear(*sizes, bias=bias, scattered=scattered, chunks=chunks)


def _adapters(name: str, layer: Layer, context: Context) -> Options | None:
    """Return the adapters of the projection ``name``; None where ``layer`` has none."""
    model = context.adapted
    adapter = adapter_of(model, name) if model is not None and f"{name}.{A}" in layer else None
    if model is None or adapter is None:
        return None
    return Options(name, adapter, model.lora_rank, scale_of(model), context.adapter_dropout)


def make_row(name: str, layer: Layer, context: Context) -> RowParallelLinear:
    """Return the projection ``name`` of ``layer``, whose input features are cut."""
    (width, inner), bias = layer[f"{name}.weight"].shape, f"{name}.bias" in layer
    group, scattered, chunks = context.groups.tensor, context.scatter_norms, context.tp_overlap
    if options := _adapters(name, layer, context):
        return AdaptedRow(inner, width, group, options, bias=bias, scattered=scattered, chunks=chunks)
    return RowParallelLinear(inner, width, group, bias=bias, scattered=scattered, chunks=chunks)


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))`` (SwiGLU, arXiv 2002.05202); gate and up are one matrix.

    For ``geglu_tanh`` gelu, in its tanh approximation, takes the place of silu.
    """

    def __init__(self, layer: Layer, context: Context, activation: str = "swiglu"):
        super().__init__()
        self.activation = activation
        self.act = partial(F.gelu, approximate="tanh") if activation == "geglu_tanh" else F.silu
        self.gate_up = make_column("mlp.gate_up", layer, context)
        self.down = make_row("mlp.down", layer, context)
        self.tiles = context.recompute.mlp_tiles

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``."""
        return in_tiles(self._whole, x, self.tiles, self.parameters())

    def _whole(self, x: Tensor) -> Tensor:
        return self.down(self.gated(self.gate_up(x)))

    def gated(self, both: Tensor) -> Tensor:
        """Return ``act(gate) * up`` of gate and up side by side, ``[..., 2 F]``."""
        gate, up = both.chunk(2, dim=-1)
        return self.act(gate) * up


class MLP(nn.Module):
    """``down(gelu(up(x)))``; gelu in its erf form, or for ``gelu_tanh`` its tanh approximation; or relu."""

    def __init__(self, layer: Layer, context: Context, activation: str):
        super().__init__()
        gelu = partial(F.gelu, approximate="tanh" if activation == "gelu_tanh" else "none")
        self.act = F.relu if activation == "relu" else gelu
        self.up = make_column("mlp.up", layer, context)
        self.down = make_row("mlp.down", layer, context)
        self.tiles = context.recompute.mlp_tiles

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``."""
        return in_tiles(self._whole, x, self.tiles, self.parameters())

    def _whole(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def make_mlp(layer: Layer, context: Context, activation: str) -> nn.Module:
    """Return the MLP that ``layer`` describes."""
    return GatedMLP(layer, context, activation) if "mlp.gate_up.weight" in layer else MLP(layer, context, activation)
