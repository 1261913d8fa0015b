"""One forward pass of a model with a cache, over tensor-parallel ranks and pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from megads.comm.groups import Groups
from megads.errors import ConfigError
from megads.inference.cache import KeyValueCache
from megads.inference.retro.neighbors import NeighborSource
from megads.models.gpt import GPT, Block
from megads.parallel.documents import Documents, Lengths


class Runner:
    """Runs prompts and single tokens through one model, on this rank.

    All ranks of a model call the same methods in the same order. Tensor-parallel ranks share every
    layer, pipeline stages pass activations on, and only the last one has logits.

    Args:
        module: this rank's part of the model, in evaluation mode, on its device, in its dtype.
        groups: of the model; with sequence parallelism whole sequences can be run, not text generated.
        context: most tokens of a sequence.
        num_slots: sequences that the cache holds.
    """

    def __init__(self, module: GPT, groups: Groups, *, context: int, num_slots: int):
        self.module, self.groups, self.context, self.num_slots = module, groups, context, num_slots
        first = next(module.parameters())
        self.device, self.dtype = first.device, first.dtype
        self.cache = self.make_cache()

    def make_cache(self) -> KeyValueCache:
        """Return the cache."""
        return KeyValueCache(
            [cast(Block, layer).attention.place for layer in self.module.layers.values()],
            num_slots=self.num_slots,
            num_kv_heads=self.module.config.num_kv_heads // self.groups.tensor_size,
            head_dim=self.module.config.head_dim,
            context=self.context,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank has logits."""
        return self.module.has_head

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, without padding."""
        return self.module.config.vocab_size

    def parts_of(self, prompt: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the text that an encoder reads, empty without one, and what the output continues."""
        return (), prompt

    def check_layout(self) -> None:
        """Refuse a layout that cannot generate.

        Raises:
            ConfigError: it has sequence parallelism.
        """
        if self.groups.seq_size > 1:
            raise ConfigError(f"SP={self.groups.seq_size}: text is generated without sequence parallelism; use SP=1")

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        first_slot: int = 0,
        texts: Sequence[Sequence[int]] = (),
        neighbors: Sequence[NeighborSource | None] = (),
    ) -> Tensor:
        """Run whole prompts into slots from ``first_slot`` on.

        Args:
            prompts: tokens that the outputs continue, see :meth:`parts_of`.
            first_slot: of the first one.
            texts: for an encoder, of each prompt.
            neighbors: for a model that looks at neighbours, of each prompt.

        Returns:
            ``[B, S, H]`` for :meth:`logits`, S the longest prompt; what is behind a shorter one has no meaning.

        Raises:
            ConfigError: the layout has sequence parallelism.
        """
        self.check_layout()
        self.cache.begin_prefill(first_slot, [len(each) for each in prompts])
        tokens = self._padded(prompts)
        positions = torch.arange(tokens.shape[1], device=self.device).expand(tokens.shape)
        return self._forward(tokens, Documents(positions, cache=self.cache))

    def run(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Run whole sequences and keep nothing of them; return ``[B, S, H]`` as :meth:`prefill` does."""
        tokens, groups = self._padded(rows), self.groups
        if groups.seq is None:
            return self._forward(tokens, Documents(lengths=self._lengths(rows)))
        # Each sequence rank runs its part of every row; all of them have the whole result.
        width = -(-tokens.shape[1] // groups.seq_size)
        tokens = F.pad(tokens, (0, width * groups.seq_size - tokens.shape[1]))
        mine = self._forward(tokens[:, groups.seq_rank * width :][:, :width], Documents()).contiguous()
        parts = [torch.empty_like(mine) for _ in range(groups.seq_size)]
        dist.all_gather(parts, mine, group=groups.seq)
        return torch.cat(parts, dim=1)

    def _lengths(self, rows: Sequence[Sequence[int]]) -> Lengths | None:
        """Return what an encoder must not look at: padding; nothing of it is before a token of a decoder."""
        lengths = torch.tensor([len(each) for each in rows], device=self.device)
        longest = int(lengths.max())
        return None if self.module.is_causal or int(lengths.min()) == longest else Lengths(lengths, longest)

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, rows))
        return torch.tensor([[*each, *[0] * (longest - len(each))] for each in rows], device=self.device)

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Run one token for each of the first slots, which hold ``lengths`` tokens; return ``[B, H]``."""
        before = torch.tensor(lengths)
        self.cache.begin_decode(before)
        column = torch.tensor(tokens, device=self.device).unsqueeze(1)
        return self._decode(column, before.unsqueeze(1).to(self.device))[:, 0]

    def _decode(self, column: Tensor, positions: Tensor) -> Tensor:
        return self._forward(column, Documents(positions, cache=self.cache))

    def _forward(self, tokens: Tensor, documents: Documents) -> Tensor:
        module, groups = self.module, self.groups
        if module.has_embedding:
            x = module.embed(tokens, documents)
        else:
            x = torch.empty(module.boundary(*tokens.shape), dtype=self.dtype, device=self.device)
            dist.recv(x, src=groups.ranks("pipe")[groups.pipe_rank - 1], group=groups.pipe)
        for layer in module.layers.values():
            x = layer(x, documents)
        if not module.has_head:
            dist.send(x.contiguous(), dst=groups.ranks("pipe")[groups.pipe_rank + 1], group=groups.pipe)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Map ``[N, H]`` to the logits ``[N, V]`` of the real vocabulary, float32 or wider; on the last stage only."""
        local = self._columns(hidden.unsqueeze(0))[0]
        local = local if local.dtype == torch.float64 else local.float()
        if self.groups.tensor is not None:
            parts = [torch.empty_like(local) for _ in range(self.groups.tensor_size)]
            dist.all_gather(parts, local.contiguous(), group=self.groups.tensor)
            local = torch.cat(parts, dim=-1)
        return local[:, : self.vocab_size]

    def _columns(self, hidden: Tensor) -> Tensor:
        found = self.module.logits(hidden)
        return found[0] if isinstance(found, tuple) else found  # the head for pairs is not asked

    def share(self, found: Tensor) -> Tensor:
        """Return on every stage what the last one found; a tensor of the same shape and type on each, on the CPU."""
        if self.groups.pipe is None:
            return found.cpu()
        there = found.to(self.device)
        dist.broadcast(there, src=self.groups.ranks("pipe")[-1], group=self.groups.pipe)
        return there.cpu()
