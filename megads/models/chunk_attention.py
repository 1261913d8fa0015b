"""Attention of Retro: among a neighbour's tokens, of neighbours to their chunk, and of tokens to neighbours."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.models.attention import Attention
from megads.models.cross_attention import CrossAttention
from megads.models.layers import Context, Layer


class TextAttention(Attention):
    """Attention in both directions among the tokens of one neighbour, padding and all, as Megatron-LM has it."""


class NeighborAttention(CrossAttention):
    """Attention of the tokens of all neighbours of a chunk to the tokens of the chunk."""

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, place: str):
        super().__init__(model, layer, context, place)
        self.neighbors, self.chunk = model.retro_num_neighbors, model.retro_chunk_length

    def forward(self, x: Tensor, chunks: Tensor, draws: Draws | None = None) -> Tensor:  # type: ignore[override]
        """Map ``[B L k, r, H]`` to the same; ``chunks`` is ``[B, s, H]``, of which the first ``L m`` tokens count."""
        q = self.q(x)
        texts, length, _ = q.shape
        q = q.reshape(texts // self.neighbors, self.neighbors * length, self.num_heads, self.head_dim)
        rows = chunks.shape[0]
        seen = len(q) // rows * self.chunk
        k, v = (each[:, :seen].reshape(len(q), self.chunk, *each.shape[2:]) for each in self._keys(chunks))
        mixed = self.recompute.core(partial(self._attend, None, draws), q, k, v)
        return self.out(mixed.reshape(texts, length, -1))


class ChunkAttention(CrossAttention):
    """Attention of a row's tokens to the encoded neighbours: token ``t`` to those of chunk ``(t + 1) // m - 1``.

    Tokens of the first chunk but its last see nothing, and change by nothing, bias or not.

    Args:
        seq_rank: of ranks that hold a part of every row, this one's number: the encoded neighbours begin with those of
            the chunk before this rank's first. None: rows are whole.
    """

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, place: str, seq_rank: int | None):
        super().__init__(model, layer, context, place)
        self.neighbors, self.chunk, self.seq_rank = model.retro_num_neighbors, model.retro_chunk_length, seq_rank
        groups = context.groups
        self.part = (groups.tensor_rank, groups.tensor_size) if context.scatter_norms else (0, 1)

    def forward(self, x: Tensor, encoded: Tensor, draws: Draws | None = None) -> Tensor:  # type: ignore[override]
        """Map ``[B, s, H]`` to ``[B, s, H]``; ``encoded`` is ``[B L k, r, H]``, or of ``L + 1`` chunks."""
        q = self.q(x)
        rows, length, _ = q.shape
        k, v = self._keys(encoded)
        k, v = (each.reshape(len(each) // self.neighbors, -1, *each.shape[2:]) for each in (k, v))
        chunks = len(k) // rows
        first = self.chunk - 1 if self.seq_rank is None else -1  # the token that is the first to look at the first
        last = min(length, first + chunks * self.chunk)
        behind = first + chunks * self.chunk - last
        q = F.pad(q[:, max(first, 0) : last], (0, 0, max(-first, 0), behind))
        q = q.reshape(len(k), self.chunk, self.num_heads, self.head_dim)
        mixed = self.recompute.core(partial(self._attend, None, draws), q, k, v)
        mixed = mixed.reshape(rows, chunks * self.chunk, -1)[:, max(-first, 0) : chunks * self.chunk - behind]
        seen = self.out(F.pad(mixed, (0, 0, max(first, 0), length - last)))
        return self._of_lookers(seen, self.chunk - 1 if not self.seq_rank else 0, last)

    def _of_lookers(self, seen: Tensor, first: int, last: int) -> Tensor:
        """Return ``seen`` with zeros for tokens before ``first`` and from ``last`` on: of them it is the bias."""
        if self.out.bias is None:
            return seen
        rank, ranks = self.part
        here = seen.shape[1]
        where = torch.arange(rank * here, (rank + 1) * here, device=seen.device).unsqueeze(1)
        return seen.where((where >= first) & (where < min(last, ranks * here)), seen.new_zeros(()))
