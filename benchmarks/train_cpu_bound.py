"""The bound of ``benchmarks/train_cpu.py``: a Llama as one writes it by hand for torch.compile, products fused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedBlock(nn.Module):
    """A layer with one product for q, k and v and one for gate and up."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return ``[batch, length, width]``."""
        batch, length, width = x.shape
        mixed = self.qkv(self.first(x)).view(batch, length, -1, self.size).transpose(1, 2)
        q, k, v = mixed.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x`` with the rotation of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class FusedLlama(nn.Module):
    """Layers between an embedding and an output layer; returns the loss."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, inner: int, length: int, vocab: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(FusedBlock(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        size = width // heads
        angle = torch.outer(torch.arange(length), 10_000.0 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of ``[batch, length]`` tokens and labels."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())
