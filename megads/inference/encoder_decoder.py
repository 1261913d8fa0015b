"""A model that reads a text with its encoder, and writes another one with its decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.inference.cross_cache import CrossCache
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.runner import Runner
from megads.models.t5 import T5, DecoderBlock
from megads.parallel.documents import Documents, Lengths


class EncoderDecoderRunner(Runner):
    """Runs prompts through the encoder, once each, and single tokens through the decoder; see :class:`Runner`.

    A forward pass of whole prompts is that of training: the decoder's first token lies behind the encoder's. In a
    decode step there are no tokens of the encoder, whose layers hand on what they get.

    Args:
        module: this rank's part of the model, see :class:`Runner`.
        groups: of the model.
        context: most tokens of a prompt, and of an output.
        num_slots: sequences that the cache holds.
        start: the token with which the decoder begins.
    """

    module: T5
    cache: CrossCache

    def __init__(self, module: T5, groups: Groups, *, context: int, num_slots: int, start: int):
        self.start = start
        super().__init__(module, groups, context=context, num_slots=num_slots)

    def make_cache(self) -> CrossCache:
        """Return the cache."""
        blocks = [each for each in self.module.layers.values() if isinstance(each, DecoderBlock)]
        return CrossCache(
            [each.attention.place for each in blocks],
            [each.cross_attention.place for each in blocks],
            num_slots=self.num_slots,
            num_kv_heads=self.module.config.num_kv_heads // self.groups.tensor_size,
            head_dim=self.module.config.head_dim,
            context=self.context,
            dtype=self.dtype,
            device=self.device,
        )

    def parts_of(self, prompt: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return what the encoder reads, and what the output continues."""
        return prompt, [self.start]

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        first_slot: int = 0,
        texts: Sequence[Sequence[int]] = (),
        neighbors: Sequence[NeighborSource | None] = (),
    ) -> Tensor:
        """Run whole ``texts`` through the encoder and what follows them, ``prompts``, through the decoder.

        Returns:
            ``[B, S, H]`` for :meth:`logits`, S the longest of ``prompts``.
        """
        self.check_layout()
        lengths = [len(each) for each in texts]
        self.cache.begin_texts(first_slot, [len(each) for each in prompts], lengths)
        encoder, decoder = self._padded(texts), self._padded(prompts)
        longest = encoder.shape[1]
        real = Lengths(torch.tensor(lengths, device=self.device), longest) if min(lengths) < longest else None
        documents = Documents(cache=self.cache, texts=self.cache, lengths=real, encoder_tokens=longest)
        x = self._forward(torch.cat([encoder, decoder], dim=1), documents)
        return x[:, longest : longest + decoder.shape[1]]

    def _decode(self, column: Tensor, positions: Tensor) -> Tensor:
        return self._forward(column, Documents(positions, cache=self.cache, texts=self.cache, encoder_tokens=0))

    def _columns(self, hidden: Tensor) -> Tensor:
        return self.module.decoder_logits(hidden)
