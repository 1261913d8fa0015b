"""Keys and values of the sequences that are being generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FIRST_CAPACITY = 256
"""Tokens per sequence that memory is taken for at first; doubled when a sequence is longer."""


class KeyValueCache:
    """Keys and values of up to ``num_slots`` sequences, of the layers and heads that this rank holds.

    A sequence has a slot. Those in use are 0 .. n - 1, so the batch of a decode step is a view of the
    cache and nothing is copied. Memory per token, on one rank: ``2 * layers * kv_heads * D`` elements.

    Args:
        layers: names of this stage's attention layers.
        num_slots: sequences at a time.
        num_kv_heads: of this tensor-parallel rank.
        head_dim: D.
        context: positions of the longest sequence.
        dtype: of the model.
        device: of the model.
    """

    def __init__(
        self,
        layers: Sequence[str],
        *,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.context, self.num_slots = context, num_slots
        self.capacity = min(context, FIRST_CAPACITY)
        shape = (num_slots, self.capacity, num_kv_heads, head_dim)
        # Zeros: a masked key has weight 0, and 0 times what memory happens to hold may be NaN.
        self._keys = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in layers}
        self._values = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in layers}
        self._dtype, self._device = dtype, device
        self._slots = slice(0, 0)
        self._longest = 0
        self._places: Tensor | None = None
        self._mask: Tensor | None = None
        self._lengths = torch.zeros(1, dtype=torch.int64)
        self._bias: Tensor | None = None

    def begin_prefill(self, first_slot: int, lengths: Sequence[int]) -> None:
        """The next forward pass is of whole prompts, padded at their ends, in slots from ``first_slot`` on."""
        self._slots, self._longest = slice(first_slot, first_slot + len(lengths)), max(lengths)
        self._places = self._mask = self._bias = None
        self._reserve(self._longest)

    def begin_decode(self, lengths: Tensor) -> None:
        """The next forward pass is of one token for each of the first slots, which follows ``lengths`` ``[B]``."""
        shortest, longest = (int(each) for each in lengths.aminmax())
        self._slots, self._longest = slice(0, len(lengths)), longest + 1
        self._reserve(self._longest)
        # Made once for all layers: where the token goes, counted over the slots, and what it does not see.
        self._places = (torch.arange(len(lengths)) * self.capacity + lengths.cpu()).to(self._device)
        self._mask = self._bias = None
        self._lengths = lengths.cpu()
        if shortest < longest:
            unseen = torch.arange(self._longest) > lengths.cpu().unsqueeze(1)
            mask = torch.zeros(unseen.shape, dtype=self._dtype).masked_fill_(unseen, -torch.inf)
            self._mask = mask[:, None, None].to(self._device)

    def attend(
        self, layer: str, q: Tensor, k: Tensor, v: Tensor, bias: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Store ``k`` and ``v`` ``[B, S, kv heads, D]`` and return the attention of ``q``, ``[B, S, heads, D]``.

        Args:
            bias: see :class:`megads.parallel.documents.Cache`.
        """
        scale = None if bias is None else 1.0
        keys, values = self._keys[layer], self._values[layer]
        if self._places is None:
            length = k.shape[1]
            keys[self._slots, :length], values[self._slots, :length] = k, v
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            grouped, mask = q.shape[1] != k.shape[1], self._bias_of(bias)
            mixed = F.scaled_dot_product_attention(
                q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
            )
            return mixed.transpose(1, 2)
        keys.flatten(0, 1).index_copy_(0, self._places, k[:, 0])
        values.flatten(0, 1).index_copy_(0, self._places, v[:, 0])
        batch, _, heads, width = q.shape
        # Query heads that share a key head are the rows of one product: keys are read once and not repeated.
        grouped_q = q.view(batch, k.shape[2], heads // k.shape[2], width)
        keys, values = (each[self._slots, : self._longest].transpose(1, 2) for each in (keys, values))
        mask = self._bias_of(bias)
        mask = self._mask if mask is None else mask.reshape(batch, k.shape[2], heads // k.shape[2], -1)
        mixed = F.scaled_dot_product_attention(grouped_q, keys, values, attn_mask=mask, scale=scale)
        return mixed.reshape(batch, 1, heads, width)

    def _bias_of(self, bias: Callable[[Tensor], Tensor] | None) -> Tensor | None:
        """Return ``[B, heads, S, K]`` of this pass, made once for all layers."""
        if bias is not None and self._bias is None:
            keys = torch.arange(self._longest)
            queries = keys if self._places is None else self._lengths.unsqueeze(1)
            distance = keys - queries.unsqueeze(-1)
            self._bias = bias(distance.view(-1, queries.shape[-1], self._longest).to(self._device))
        return self._bias

    def move(self, source: int, target: int, length: int) -> None:
        """Put the first ``length`` tokens of slot ``source`` into slot ``target``."""
        for each in (*self._keys.values(), *self._values.values()):
            each[target, :length] = each[source, :length]

    def reorder(self, sources: Tensor, length: int) -> None:
        """Let slot i hold what slot ``sources[i]`` holds, of the first ``length`` tokens."""
        for each in (*self._keys.values(), *self._values.values()):
            each[: len(sources), :length] = each[sources.to(each.device), :length]

    def _reserve(self, length: int) -> None:
        if length <= self.capacity:
            return
        new = min(self.context, max(length, 2 * self.capacity))
        for held in (self._keys, self._values):
            for layer, old in held.items():
                held[layer] = old.new_zeros(old.shape[0], new, *old.shape[2:])
                held[layer][:, : self.capacity] = old
        self.capacity = new
