"""Retro, written down from its description token by token: no module of ours, no fused kernel, no product of chunks.

Of either kind: LayerNorm, GELU, learned positions and biases, or RMSNorm, SwiGLU, rotary positions and shared keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megads.config.schema import ModelConfig

Weights = Mapping[str, Tensor]


class Reference:
    """The model with ``weights``; ``text`` is ``[B, S]``, ``neighbors`` ``[B, L, k, r]``."""

    def __init__(self, model: ModelConfig, weights: Weights):
        self.model, self.weights = model, weights

    def logits(self, text: Tensor, neighbors: Tensor) -> Tensor:
        """Return ``[B, S, V]``."""
        return torch.stack([self._row(*each) for each in zip(text, neighbors, strict=True)])

    def _row(self, text: Tensor, neighbors: Tensor) -> Tensor:
        model, m = self.model, self.model.retro_chunk_length
        x, encoded = self._embedded(text), {}
        causal = torch.ones(len(text), len(text), dtype=torch.bool).tril()
        start = 6 if model.num_layers <= 15 else 9
        for number in range(1, model.num_layers + 1):
            at = f"layers.{number - 1}."
            x = self._own(at, x, causal)
            if number >= start and (number - start) % 3 == 0:
                states = self._norm(f"{at}cross_norm", x)
                if number == start:
                    for chunk, texts in enumerate(neighbors):
                        mine = states[chunk * m : (chunk + 1) * m]
                        encoded[chunk] = torch.cat([self._encoded(f"{at}retriever.", each, mine) for each in texts])
                seen = []
                for token in range(len(text)):
                    chunk = (token + 1) // m - 1
                    if chunk in encoded:
                        seen.append(self._look(at, states[token : token + 1], encoded[chunk]))
                    else:
                        seen.append(torch.zeros_like(x[:1]))
                x = x + model.retro_attention_gate * torch.cat(seen)
            x = self._mlp(at, x)
        table = self.weights["embedding.weight" if model.tied_embeddings else "head.weight"]
        return self._norm("final_norm", x) @ table.T

    def _encoded(self, at: str, text: Tensor, chunk: Tensor) -> Tensor:
        x, every = self._embedded(text), torch.ones(len(text), len(text), dtype=torch.bool)
        for number in range(self.model.retro_encoder_layers):
            layer = f"{at}{number}."
            x = self._own(layer, x, every)
            if number == 0:
                x = x + self._look(layer, self._norm(f"{layer}cross_norm", x), chunk)
            x = self._mlp(layer, x)
        return x

    def _embedded(self, tokens: Tensor) -> Tensor:
        x = self.weights["embedding.weight"][tokens]
        return x + self.weights["positions.weight"][: len(tokens)] if "positions.weight" in self.weights else x

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _norm(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.bias" in self.weights:
            x = x - x.mean(-1, keepdim=True)
        scaled = x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.model.norm_epsilon)
        return self._plus(scaled * self.weights[f"{name}.weight"], f"{name}.bias")

    def _plus(self, x: Tensor, name: str) -> Tensor:
        return x + self.weights[name] if name in self.weights else x

    def _own(self, at: str, x: Tensor, seen: Tensor) -> Tensor:
        model = self.model
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        parts = self._linear(f"{at}attention.qkv", self._norm(f"{at}input_norm", x)).split([queries, keys, keys], -1)
        q, k, v = (each.unflatten(-1, (-1, model.head_dim)) for each in parts)
        if model.position_embedding == "rope":
            q, k = self._rotated(q), self._rotated(k)
        return x + self._linear(f"{at}attention.out", self._attention(q, k, v, seen))

    def _look(self, at: str, x: Tensor, other: Tensor) -> Tensor:
        """Return what ``x``, normalised, sees in ``other``."""
        q = self._linear(f"{at}cross_attention.q", x).unflatten(-1, (-1, self.model.head_dim))
        kv = self._linear(f"{at}cross_attention.kv", other).chunk(2, -1)
        k, v = (each.unflatten(-1, (-1, self.model.head_dim)) for each in kv)
        every = torch.ones(len(x), len(other), dtype=torch.bool)
        return self._linear(f"{at}cross_attention.out", self._attention(q, k, v, every))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        shared = q.shape[1] // k.shape[1]
        mixed = []
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head // shared].T / math.sqrt(q.shape[2])
            mixed.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, head // shared])
        return torch.cat(mixed, -1)

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotate ``[S, heads, D]``: channel i with channel i + D/2."""
        half = x.shape[2] // 2
        # Frequencies are float32 numbers, as in transformers.
        rates = (1 / self.model.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)).double()
        angles = (torch.arange(len(x), dtype=torch.float64)[:, None] * rates)[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def _mlp(self, at: str, x: Tensor) -> Tensor:
        y = self._norm(f"{at}post_norm", x)
        if f"{at}mlp.gate_up.weight" in self.weights:
            gate, up = self._linear(f"{at}mlp.gate_up", y).chunk(2, -1)
            return x + self._linear(f"{at}mlp.down", gate * torch.sigmoid(gate) * up)
        y = self._linear(f"{at}mlp.up", y)
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)
        return x + self._linear(f"{at}mlp.down", 0.5 * y * (1 + torch.tanh(inner)))
