"""Megatron's T5, written down from its description with plain products: no module of ours, no fused kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def logits_of(
    weights: Weights, text: Tensor, start: Tensor, lengths: Tensor, *, encoder: int, decoder: int, heads: int
) -> Tensor:
    """Return ``[B, D, V]`` of an encoder and a decoder of so many layers."""
    real = torch.arange(text.shape[1]) < lengths[:, None]
    causal = torch.ones(start.shape[1], start.shape[1], dtype=torch.bool).tril()
    x = _embedded(weights, text)
    for i in range(encoder):
        x = _own(weights, f"layers.{i}.", x, real[:, None, None, :], heads)
        x = _mlp(weights, f"layers.{i}.", x)
    encoded = _norm(weights, f"layers.{encoder - 1}.encoder_norm", x)
    y = _embedded(weights, start)
    for i in range(encoder, encoder + decoder):
        y = _own(weights, f"layers.{i}.", y, causal[None, None], heads)
        at = f"layers.{i}.cross_attention."
        q = _linear(weights, f"{at}q", _norm(weights, f"layers.{i}.cross_norm", y))
        k, v = _linear(weights, f"{at}kv", encoded).chunk(2, dim=-1)
        y = y + _linear(weights, f"{at}out", _attention(q, k, v, real[:, None, None, :], heads))
        y = _mlp(weights, f"layers.{i}.", y)
    return _norm(weights, "final_norm", y) @ weights["embedding.weight"].T + weights["output_bias.bias"]


def _embedded(weights: Weights, tokens: Tensor) -> Tensor:
    return weights["embedding.weight"][tokens] + weights["positions.weight"][: tokens.shape[1]]


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, heads: int) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(~seen, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


def _own(weights: Weights, at: str, x: Tensor, seen: Tensor, heads: int) -> Tensor:
    q, k, v = _linear(weights, f"{at}attention.qkv", _norm(weights, f"{at}input_norm", x)).chunk(3, dim=-1)
    return x + _linear(weights, f"{at}attention.out", _attention(q, k, v, seen, heads))


def _mlp(weights: Weights, at: str, x: Tensor) -> Tensor:
    inner = _linear(weights, f"{at}mlp.up", _norm(weights, f"{at}post_norm", x))
    gelu = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
    return x + _linear(weights, f"{at}mlp.down", gelu)
