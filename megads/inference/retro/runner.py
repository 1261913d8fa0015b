"""Forward passes of a model that looks at neighbours, with a cache.

A chunk is looked up as soon as its last token is there, and that token is the first to look at what was found. The
encoder of neighbours looks at all tokens of the chunk, so then the sequence is run again from its beginning;
between two such steps, 64 tokens, keys and values of the encoded neighbours are kept, as those of tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from megads.inference.retro.cache import RetroCache, Row
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.runner import Runner
from megads.models.gpt import Block
from megads.models.retro import LookingBlock, Retro
from megads.parallel.documents import Documents, Neighbors


class RetroRunner(Runner):
    """Runs prompts with neighbours, and single tokens; arguments are those of :class:`Runner`."""

    module: Retro
    cache: RetroCache

    def make_cache(self) -> RetroCache:
        """Return the cache."""
        config = self.module.config
        return RetroCache(
            [cast(Block, layer).attention.place for layer in self.module.layers.values()],
            num_slots=self.num_slots,
            num_kv_heads=config.num_kv_heads // self.groups.tensor_size,
            head_dim=config.head_dim,
            context=self.context,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def looks(self) -> bool:
        """Whether neighbours change anything: not with RETRO_ATTENTION_GATE=0."""
        return self.module.config.retro_attention_gate > 0

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        first_slot: int = 0,
        texts: Sequence[Sequence[int]] = (),
        neighbors: Sequence[NeighborSource | None] = (),
    ) -> Tensor:
        """Run whole prompts into slots from ``first_slot`` on; see :meth:`Runner.prefill`.

        Args:
            neighbors: of each prompt; None, or nothing at all: it has none.
        """
        self.check_layout()
        found = []
        for place, prompt in enumerate(prompts):
            source = neighbors[place] if neighbors and self.looks else None
            self.cache.rows[first_slot + place] = Row(list(prompt), source)
            found.append(self._run_row(first_slot + place))
        return pad_sequence(found, batch_first=True)

    def _run_row(self, slot: int) -> Tensor:
        """Run the sequence in a slot from its beginning, and keep what its next tokens need; return ``[S, H]``."""
        row, model = self.cache.rows[slot], self.module.config
        length, chunk = len(row.tokens), model.retro_chunk_length
        if row.source is not None:
            for number in range(len(row.neighbors), length // chunk):
                row.neighbors.append(row.source(number, row.tokens[number * chunk : (number + 1) * chunk]))
        self.cache.begin_prefill(slot, [length])
        texts = np.concatenate([each.reshape(-1) for each in row.neighbors]).tolist() if row.neighbors else []
        neighbors = Neighbors(model.retro_num_neighbors)
        positions = torch.arange(length, device=self.device).unsqueeze(0)
        documents = Documents(positions, cache=self.cache, encoder_tokens=length, neighbors=neighbors)
        x = self._forward(torch.tensor([[*row.tokens, *texts]], device=self.device), documents)
        if neighbors.encoded is not None:
            last = neighbors.encoded[-model.retro_num_neighbors :].flatten(0, 1).unsqueeze(0)
            for name, layer in self.module.layers.items():
                if isinstance(layer, LookingBlock):
                    row.across[name] = _keys_of(layer, last)
        return x[0]

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Run one token for each of the first slots, which hold ``lengths`` tokens; return ``[B, H]``."""
        hidden = super().decode(tokens, lengths)
        for slot, token in enumerate(tokens):
            row = self.cache.rows[slot]
            row.tokens.append(token)
            if row.source is not None and not len(row.tokens) % self.module.config.retro_chunk_length:
                hidden[slot] = self._run_row(slot)[-1]
        return hidden

    def _decode(self, column: Tensor, positions: Tensor) -> Tensor:
        documents = Documents(positions, cache=self.cache, encoder_tokens=1)
        x = self.module.embed(column, documents)
        for name, layer in self.module.layers.items():
            block = cast(Block, layer)
            if isinstance(block, LookingBlock) and any(row.across for row in self.cache.rows[: len(column)]):
                x = block.attend(x, documents, None)
                x = block.change(x + self._seen(name, block, x), None)
            else:
                x = block(x, documents)
        return x

    def _seen(self, name: str, block: LookingBlock, x: Tensor) -> Tensor:
        """Return what one token of each sequence, ``[B, 1, H]``, sees in the neighbours that it looks at."""
        across, model = block.cross_attention, self.module.config
        texts = model.retro_num_neighbors * model.retro_chunk_length * model.retro_retrieved_chunks
        k, v, has = self.cache.across(name, len(x), (texts, across.num_kv_heads, across.head_dim))
        q = across.q(block.cross_norm(x)).view(len(x), 1, across.num_heads, across.head_dim)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        seen = across.out(mixed.transpose(1, 2).reshape(len(x), 1, -1)) * block.gate
        return seen if has is None else seen * has


def _keys_of(block: LookingBlock, encoded: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values ``[k r, kv heads, D]`` of encoded neighbours ``[1, k r, H]``."""
    across = block.cross_attention
    k, v = across.kv(encoded)[0].unflatten(1, (2 * across.num_kv_heads, across.head_dim)).chunk(2, dim=1)
    return k, v
