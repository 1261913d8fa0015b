"""What a decoder that looks at an encoder's output keeps: its own keys and values, and those of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.inference.cache import KeyValueCache


class CrossCache(KeyValueCache):
    """Keys and values as in :class:`KeyValueCache`, and those of the encoder's output, computed once per text.

    A token of a text needs as much memory as one of the decoder. Arguments are those of :class:`KeyValueCache`, and

    Args:
        across: names of this stage's attention layers to the encoder's output.
    """

    def __init__(
        self,
        layers: Sequence[str],
        across: Sequence[str],
        *,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        context: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        super().__init__(
            layers,
            num_slots=num_slots,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            context=context,
            dtype=dtype,
            device=device,
        )
        empty = torch.zeros(2, num_slots, 0, num_kv_heads, head_dim, dtype=dtype, device=device)
        self._kept = {layer: empty for layer in across}  # keys, values
        self._texts = [(0, 0)] * num_slots  # of each slot a number of its text, and how many tokens that has
        self._count = 0
        self._is_new = False
        self._longest_text = 0
        self._real: Tensor | None = None

    def begin_texts(self, first_slot: int, prompts: Sequence[int], texts: Sequence[int]) -> None:
        """The next forward pass is of whole texts and of what the decoder begins with, see :meth:`begin_prefill`.

        Args:
            first_slot: the first of the sequences.
            prompts: how many tokens the decoder begins with.
            texts: how many tokens the encoder reads.
        """
        self.begin_prefill(first_slot, prompts)
        for place, length in enumerate(texts):
            self._count += 1
            self._texts[first_slot + place] = self._count, length
        self._is_new = True
        self._look_at(self._slots)
        for layer, old in self._kept.items():
            if self._longest_text > old.shape[2]:
                new = min(self.context, max(self._longest_text, 2 * old.shape[2]))
                self._kept[layer] = old.new_zeros(*old.shape[:2], new, *old.shape[3:])
                self._kept[layer][:, :, : old.shape[2]] = old

    def begin_decode(self, lengths: Tensor) -> None:
        """The next forward pass is of one token for each of the first slots, which follows ``lengths`` ``[B]``."""
        super().begin_decode(lengths)
        self._is_new = False
        self._look_at(self._slots)

    def _look_at(self, slots: slice) -> None:
        """Note how long the texts in ``slots`` are, once for all layers."""
        lengths = [length for _, length in self._texts[slots]]
        self._longest_text, self._real = max(lengths), None
        if min(lengths) < self._longest_text:
            real = torch.arange(self._longest_text) < torch.tensor(lengths).unsqueeze(1)
            self._real = real[:, None, None].to(self._device)

    def across(
        self, layer: str, q: Tensor, encoded: Callable[[], tuple[Tensor, Tensor]], scale: float | None
    ) -> Tensor:
        """Return the attention of ``q``, ``[B, S, heads, D]``, to the texts; see ``TextCache``."""
        if self._is_new:
            for kept, new in zip(self._kept[layer], encoded(), strict=True):
                kept[self._slots, : self._longest_text] = new
        k, v = (each.transpose(1, 2) for each in self._kept[layer][:, self._slots, : self._longest_text])
        grouped = q.shape[2] != k.shape[1]
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=self._real, scale=scale, enable_gqa=grouped
        )
        return mixed.transpose(1, 2)

    def move(self, source: int, target: int, length: int) -> None:
        """Put the first ``length`` tokens of slot ``source``, and its text, into slot ``target``."""
        super().move(source, target, length)
        self._copy_texts([target], [source])

    def reorder(self, sources: Tensor, length: int) -> None:
        """Let slot i hold what slot ``sources[i]`` holds, of the first ``length`` tokens; and its text."""
        super().reorder(sources, length)
        # Beams of one text hold it already, but for the first time.
        moves = [(i, source) for i, source in enumerate(sources.tolist()) if self._texts[i] != self._texts[source]]
        if moves:
            self._copy_texts(*map(list, zip(*moves, strict=True)))

    def _copy_texts(self, targets: list[int], sources: list[int]) -> None:
        longest = max(self._texts[source][1] for source in sources)
        for kept in self._kept.values():
            kept[:, targets, :longest] = kept[:, sources, :longest]
        found = [self._texts[source] for source in sources]
        for target, text in zip(targets, found, strict=True):
            self._texts[target] = text
