"""Rotary position embedding (arXiv 2104.09864), with Hugging Face's pairing of channels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megads.config.schema import ModelConfig


@dataclass(frozen=True)
class TokenPositions:
    """The positions of ``[B, s]`` tokens, which may be a rank's part of a sequence.

    Attributes:
        first: of the first token in the sequence; neighbours follow.
        whole: length of the sequence.
        positions: ``[B, s]`` int64, below ``whole``, where they start again inside the sequence; None: they do not.
    """

    first: int
    whole: int
    positions: Tensor | None = None


def frequencies(model: ModelConfig) -> Tensor:
    """Return the rotation of each pair of channels per position, ``[D/2]`` float32 radians: ``theta**(-2i/D)``, scaled.

    ``rope_scaling`` is one of

    * ``linear``: all are divided by ``rope_scaling_factor`` (arXiv 2306.15595);
    * ``llama3``: of the original context of N positions, those that rotate less than ``rope_low_freq_factor``
      times in it are divided, those that rotate more than ``rope_high_freq_factor`` times stay, and between
      the two the share that is divided falls linearly in the number of rotations.

    Bit by bit those of transformers, whose checkpoints were trained with its order of operations.
    """
    exponent = torch.arange(0, model.head_dim, 2, dtype=torch.float32, device="cpu") / model.head_dim
    plain = 1.0 / model.rope_theta**exponent
    factor = model.rope_scaling_factor
    if model.rope_scaling == "none":
        return plain
    if model.rope_scaling == "linear":
        return plain / factor
    low, high, context = model.rope_low_freq_factor, model.rope_high_freq_factor, model.rope_original_positions
    wavelength = 2 * math.pi / plain
    kept = (context / wavelength - low) / (high - low)
    between = (1 - kept) * plain / factor + kept * plain
    is_high, is_low = wavelength < context / high, wavelength > context / low
    return torch.where(is_high, plain, torch.where(is_low, plain / factor, between))


class Rotary:
    """Rotates channel ``i`` and channel ``i + D/2`` of a head by ``position * frequencies[i]``.

    Not a module and without buffers: the tables are computed in float32 (float64 for
    float64 input) whatever the model is cast to, and kept per device, type and positions.

    ``frequencies`` are ``[D/2]`` float32.
    """

    def __init__(self, frequencies: Tensor):
        self.frequencies = frequencies
        self._tables: dict[tuple[torch.device, torch.dtype, int, int], tuple[Tensor, Tensor]] = {}
        self._recent: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(
        self, heads: Tensor, num_heads: int, num_kv_heads: int, where: TokenPositions | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split fused heads into queries, keys and values, and rotate the queries and keys.

        Args:
            heads: ``[B, S, num_heads + 2 num_kv_heads, D]``.
            where: positions of the tokens; None: 0 to S - 1.

        Returns:
            ``[B, S, num_heads, D]``, ``[B, S, num_kv_heads, D]`` and ``[B, S, num_kv_heads, D]``;
            the values are a view of ``heads``.
        """
        where = where or TokenPositions(0, heads.shape[1])
        if where.positions is not None and heads.shape[1] == 1 and not torch.is_grad_enabled():
            qk = self._rotate_token(heads[:, :, : num_heads + num_kv_heads], where.positions, where)
            return qk[:, :, :num_heads], qk[:, :, num_heads:], heads[:, :, num_heads + num_kv_heads :]
        q, k, v = _SplitAndRotate.apply(heads, *self._tables_at(heads, where), where.positions, num_heads, num_kv_heads)
        return q, k, v

    def rotate(self, heads: Tensor, where: TokenPositions) -> Tensor:
        """Return ``[B, S, heads, D]``, queries or keys by themselves, rotated by the positions of their tokens."""
        return _Rotate.apply(heads, *self._tables_at(heads, where), where.positions)

    def _rotate_token(self, heads: Tensor, positions: Tensor, where: TokenPositions) -> Tensor:
        """Return what :class:`_Rotate` does, in fewer operations and without a gradient.

        The layers of a model ask for the same positions one after another: their rows are kept.
        """
        if self._recent is None or self._recent[0] is not positions:
            cos, sin = rows(*self._tables_at(heads, where), positions)
            self._recent = positions, cos, torch.cat([-sin, sin], dim=-1)
        _, cos, sin = self._recent
        return (heads * cos).addcmul_(heads.roll(heads.shape[-1] // 2, dims=-1), sin)

    def _tables_at(self, heads: Tensor, where: TokenPositions) -> tuple[Tensor, Tensor]:
        first, count = (where.first, heads.shape[1]) if where.positions is None else (0, where.whole)
        return self.tables(heads.device, heads.dtype, count, first)

    def tables(self, device: torch.device, dtype: torch.dtype, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return what positions ``first .. first + length - 1`` are rotated by: cosines ``[length, 1, D]``, for both
        halves of the channels, and sines ``[length, 1, D/2]``.
        """
        key = (device, dtype, length, first)
        if key not in self._tables:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            # Like Hugging Face: the frequencies are float32 numbers also in a float64 model.
            positions = torch.arange(first, first + length, dtype=wide)
            angle = torch.outer(positions, self.frequencies.to(wide)).unsqueeze(1)
            cos = angle.cos().to(dtype)
            self._tables[key] = (torch.cat([cos, cos], dim=-1).to(device), angle.sin().to(device, dtype))
        return self._tables[key]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    """Return ``x`` rotated, of three kernels.

    Nothing is written with ``out=`` into a slice: torch's compiler ends a graph there.
    """
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin, value=-direction)
    out[..., half:].addcmul_(x[..., :half], sin, value=direction)
    return out


def rows(cos: Tensor, sin: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the rows of both tables that ``positions`` name; None: all."""
    return (cos, sin) if positions is None else (cos[positions], sin[positions])


class _Rotate(Function):
    """Of heads that are split already; the gradient is rotated back, and only the tables are kept."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> Tensor:
        ctx.save_for_backward(cos, sin, positions)
        return _rotate(heads, *rows(cos, sin, positions), 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _rotate(grad, *rows(*ctx.saved_tensors), -1.0), None, None, None


class _SplitAndRotate(Function):
    """One function, so that autograd keeps only the tables, and which of their rows are used where not all are.

    The gradient is rotated back and joined in one copy.
    """

    @staticmethod
    def forward(
        ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, num_heads: int, num_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin, positions)
        rotated = num_heads + num_kv_heads
        qk = _rotate(heads[:, :, :rotated], *rows(cos, sin, positions), 1.0)
        return qk[:, :, :num_heads], qk[:, :, num_heads:], heads[:, :, rotated:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor | None, ...]:
        tables = rows(*ctx.saved_tensors)
        grad = torch.cat([_rotate(grad_q, *tables, -1.0), _rotate(grad_k, *tables, -1.0), grad_v], dim=2)
        return grad, None, None, None, None, None
