"""Attention of an encoder with a decoder: to the encoder's output, and with relative positions to itself."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.models.attention import Attention, load_flash
from megads.models.layers import Context, Layer, make_column, make_row
from megads.models.relative import attend_relative, distant_bias, relative_bias
from megads.models.rope import Rotary
from megads.parallel.documents import Documents, Lengths
from megads.parallel.ulysses import HeadExchange, spread_heads


class RelativeAttention(Attention):
    """``out(softmax(q k^T + bias) v)``: :class:`megads.models.attention.Attention` with T5's relative positions.

    Scores are not scaled by ``1 / sqrt(D)``.

    Raises:
        ConfigError: also where ``model.attention`` is flash, which takes no bias.
    """

    def __init__(
        self,
        model: ModelConfig,
        layer: Layer,
        context: Context,
        rotary: Rotary | None,
        place: str = "attention",
        *,
        is_causal: bool = True,
    ):
        if model.attention == "flash":
            raise ConfigError("ATTENTION=flash takes no relative positions; use ATTENTION=sdpa (NO_FLASH_ATTN=1)")
        super().__init__(model, layer, context, rotary, place, is_causal=is_causal)
        self.longest = model.relative_distance

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]`` with the biases ``documents.relative``."""
        assert documents is not None
        assert documents.relative is not None
        table = documents.relative
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = qkv.view(batch, length, sum(sizes), self.head_dim).split(sizes, dim=2)
        if self.exchange is not None:
            q, k, v = self.exchange.to_heads(q, k, v)
            mine = self.exchange.share.queries
            table = table[:, mine.start : mine.stop]
        if documents.cache is not None:
            mixed = documents.cache.attend(self.place, q, k, v, partial(distant_bias, table, self.longest))
        else:
            lengths = None if self.is_causal else documents.lengths
            mixed = self.recompute.core(partial(self._attend_relative, lengths, draws), q, k, v, table)
        if self.exchange is not None:
            mixed = self.exchange.to_tokens(mixed)
        return self.out(mixed.reshape(batch, length, -1))

    def _attend_relative(
        self, lengths: Lengths | None, draws: Draws | None, q: Tensor, k: Tensor, v: Tensor, table: Tensor
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.uses is not None:
            k, v = spread_heads(k, self.uses), spread_heads(v, self.uses)
        bias = relative_bias(table, q.shape[1], k.shape[1], self.longest, is_causal=self.is_causal)
        if dropout > 0 and draws is not None:
            draws.begin(self.place, is_split=True)
        return attend_relative(q, k, v, bias, lengths.mask if lengths else None, dropout)


class CrossAttention(nn.Module):
    """``out(softmax(q k^T / sqrt(D)) v)`` with queries of the decoder, and keys and values of the encoder's output.

    Heads are split over tensor and sequence ranks as in :class:`megads.models.attention.Attention`. Sequence ranks
    hold a part of either: one all-to-all brings the queries of all of the decoder's tokens, one the keys and
    values of all of the encoder's. With relative positions scores are not scaled; there is no bias between the two.

    Raises:
        ConfigError: the heads cannot be shared out.
        DependencyError: ``model.attention`` is flash and flash-attn is missing.
    """

    def __init__(self, model: ModelConfig, layer: Layer, context: Context, place: str):
        super().__init__()
        groups = context.groups
        self.head_dim, self.dropout, self.place = model.head_dim, model.attention_dropout, place
        self.recompute = context.recompute
        self.scale = 1.0 if model.position_embedding == "relative" else None
        self.num_heads, self.num_kv_heads = (n // groups.tensor_size for n in (model.num_heads, model.num_kv_heads))
        self.exchange = HeadExchange(self.num_heads, self.num_kv_heads, groups.seq) if groups.seq else None
        uses = self.exchange.share.uses if self.exchange else (1,)
        self.uses = uses if len(set(uses)) > 1 else None
        self.flash = load_flash() if model.attention == "flash" else None
        self.q = make_column("cross_attention.q", layer, context)
        self.kv = make_column("cross_attention.kv", layer, context)
        self.out = make_row("cross_attention.out", layer, context)

    def forward(self, x: Tensor, encoded: Tensor, documents: Documents, draws: Draws | None = None) -> Tensor:
        """Map ``[B, d, H]`` to ``[B, d, H]``; this rank's part of the decoder's tokens.

        Args:
            encoded: ``[B, e, H]``, this rank's part of the encoder's output.
            documents: the encoder's ``lengths``: padding is no key. With ``texts`` keys and values are those that are
                kept, and ``encoded`` has no rows but when a text is encoded.
        """
        q = self.q(x)
        batch, length, _ = q.shape
        q = q.view(batch, length, self.num_heads, self.head_dim)
        if documents.texts is not None:
            mixed = documents.texts.across(self.place, q, partial(self._keys, encoded), self.scale)
            return self.out(mixed.reshape(batch, length, -1))
        k, v = self._keys(encoded)
        if self.exchange is not None:
            q, k, v = self.exchange.queries_to_heads(q), *self.exchange.keys_to_heads(k, v)
        mixed = self.recompute.core(partial(self._attend, documents.lengths, draws), q, k, v)
        if self.exchange is not None:
            mixed = self.exchange.to_tokens(mixed)
        return self.out(mixed.reshape(batch, length, -1))

    def _keys(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[B, e, kv heads, D]`` of ``[B, e, H]``."""
        k, v = self.kv(encoded).unflatten(2, (2 * self.num_kv_heads, self.head_dim)).chunk(2, dim=2)
        return k, v

    def _attend(self, lengths: Lengths | None, draws: Draws | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return ``[B, D, heads, D]`` of the heads at hand."""
        dropout = self.dropout if self.training else 0.0
        if self.uses is not None:
            k, v = spread_heads(k, self.uses), spread_heads(v, self.uses)
        if dropout > 0 and draws is not None:
            draws.begin(self.place, is_split=True)
        if self.flash is not None:
            return self.flash.across(q, k, v, dropout, lengths)
        shared = q.shape[2] != k.shape[2]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mask = lengths.mask if lengths else None
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale, enable_gqa=shared
        )
        return mixed.transpose(1, 2)
