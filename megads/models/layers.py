"""Norms and the MLP of a decoder block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from megads.config.schema import ModelConfig
from megads.dist.groups import Groups
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear, parameter


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last dimension (arXiv 1910.07467)."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = parameter((width,), None)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own shape and type."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension (arXiv 1607.06450)."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = parameter((width,), None)
        self.bias = parameter((width,), None)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised, in its own shape and type."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


def make_norm(model: ModelConfig) -> nn.Module:
    """Return the norm that ``model.normalization`` names, over the hidden size."""
    kind = RMSNorm if model.normalization == "rmsnorm" else LayerNorm
    return kind(model.hidden_size, model.norm_epsilon)


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))`` (SwiGLU, arXiv 2002.05202); gate and up are one matrix."""

    def __init__(self, model: ModelConfig, groups: Groups):
        super().__init__()
        width, inner = model.hidden_size, model.ffn_hidden_size
        self.gate_up = ColumnParallelLinear(width, (inner, inner), groups.tensor, bias=model.bias)
        self.down = RowParallelLinear(inner, width, groups.tensor, bias=model.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to ``[B, S, H]``."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class MLP(nn.Module):
    """``down(gelu(up(x)))``; gelu in its erf form, or for ``gelu_tanh`` its tanh approximation."""

    def __init__(self, model: ModelConfig, groups: Groups):
        super().__init__()
        width, inner = model.hidden_size, model.ffn_hidden_size
        self.approximate = "tanh" if model.activation == "gelu_tanh" else "none"
        self.up = ColumnParallelLinear(width, inner, groups.tensor, bias=model.bias)
        self.down = RowParallelLinear(inner, width, groups.tensor, bias=model.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to ``[B, S, H]``."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


def make_mlp(model: ModelConfig, groups: Groups) -> nn.Module:
    """Return the MLP that ``model.activation`` names."""
    return GatedMLP(model, groups) if model.activation == "swiglu" else MLP(model, groups)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Return ``x`` with dropout from the default generator; ``x`` itself when there is nothing to drop."""
    return F.dropout(x, probability) if training and probability > 0 else x
