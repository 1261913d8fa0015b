"""Causal self-attention with split heads: MHA and GQA, rotary or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.config.schema import ModelConfig
from megads.dist.groups import Groups
from megads.dist.rng import RngStreams
from megads.errors import ConfigError, DependencyError, DeviceError
from megads.models.rope import Rotary
from megads.parallel.tensor import ColumnParallelLinear, RowParallelLinear


class Attention(nn.Module):
    """``out(softmax(causal(q k^T / sqrt(D))) v)`` with heads split over the tensor-parallel ranks.

    Each rank computes ``num_heads / t`` query heads and ``num_kv_heads / t`` key and value
    heads; consecutive query heads share a key/value head (GQA, arXiv 2305.13245). The
    three projections are one matrix, rows ``[q | k | v]``.

    Args:
        model: sizes; derived values must be filled in.
        groups: for the tensor-parallel group.
        rotary: turns queries and keys; None: positions come from elsewhere.
        rng: the stream for dropout on attention weights, which differ on every rank.

    Raises:
        ConfigError: the heads can not be shared out.
        DependencyError: ``model.attention`` is flash and flash-attn is missing.
    """

    def __init__(self, model: ModelConfig, groups: Groups, rotary: Rotary | None, rng: RngStreams | None):
        super().__init__()
        _check_heads(model, groups.tensor_size)
        self.head_dim, self.rotary, self.rng = model.head_dim, rotary, rng
        self.num_heads = model.num_heads // groups.tensor_size
        self.num_kv_heads = model.num_kv_heads // groups.tensor_size
        self.dropout = model.attention_dropout
        self.flash = _load_flash() if model.attention == "flash" else None
        q_width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        self.qkv = ColumnParallelLinear(
            model.hidden_size, (q_width, kv_width, kv_width), groups.tensor, bias=model.bias
        )
        self.out = RowParallelLinear(q_width, model.hidden_size, groups.tensor, bias=model.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, S, H]`` to ``[B, S, H]``."""
        batch, length, _ = x.shape
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        heads = self.qkv(x).view(batch, length, sum(sizes), self.head_dim)
        if self.rotary is not None:
            q, k, v = self.rotary(heads, self.num_heads, self.num_kv_heads)
        else:
            q, k, v = heads.split(sizes, dim=2)
        dropout = self.dropout if self.training else 0.0
        with self._stream(dropout):
            mixed = self._flash_attention(q, k, v, dropout) if self.flash else self._sdpa(q, k, v, dropout)
        return self.out(mixed.reshape(batch, length, -1))

    def _stream(self, dropout: float) -> AbstractContextManager[None]:
        return self.rng.fork() if dropout > 0 and self.rng is not None else nullcontext()

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        grouped = self.num_heads != self.num_kv_heads
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)
        return mixed.transpose(1, 2)

    def _flash_attention(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16):
            raise DeviceError(
                f"ATTENTION=flash works on nvidia and amd devices in bf16 or fp16, not on {q.device.type} in "
                f"{q.dtype}; use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
            )
        assert self.flash is not None
        return self.flash(q, k, v, dropout_p=dropout, causal=True)


def _check_heads(model: ModelConfig, degree: int) -> None:
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"HEADS={model.num_heads} is not a multiple of NUM_KV_HEAD={model.num_kv_heads}; "
            "every key/value head serves the same number of query heads"
        )
    if model.num_kv_heads % degree:
        raise ConfigError(
            f"NUM_KV_HEAD={model.num_kv_heads} key/value heads can not be shared by TP={degree} ranks; "
            f"use a TP that divides {model.num_kv_heads}"
        )
    if model.position_embedding == "rope" and model.head_dim % 2:
        raise ConfigError(f"HEAD_DIM={model.head_dim} is odd; rotary positions pair channels, use an even HEAD_DIM")


def _load_flash() -> Callable[..., Tensor]:
    try:
        from flash_attn import flash_attn_func
    except ImportError as problem:
        raise DependencyError(
            f"ATTENTION=flash needs the package flash-attn ({problem}); "
            "pip install flash-attn --no-build-isolation, or use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        ) from None
    load: Callable[..., Tensor] = flash_attn_func
    return load
