"""Self-attention with split heads: causal or not, MHA and GQA, rotary or not, by torch or by the flash-attn package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.errors import ConfigError, DependencyError, DeviceError
from megads.models.layers import Context, Layer, make_column, make_head_norm, make_row
from megads.models.rope import Rotary, TokenPositions
from megads.parallel.documents import Documents, Lengths, Segments
from megads.parallel.ulysses import HeadExchange, spread_heads

Within = Segments | Lengths | None
"""What attention stays inside of: documents, or the real tokens of a row; None: whole rows."""


@dataclass(frozen=True)
class Flash:
    """Attention of ``[B, S, heads, D]``, with fewer key/value heads than query heads or as many.

    Attributes:
        whole: ``flash_attn_func``.
        packed: ``flash_attn_varlen_func``: sequences of unequal length end to end.
    """

    whole: Callable[..., Tensor]
    packed: Callable[..., Tensor]

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: float, within: Within = None, is_causal: bool = True
    ) -> Tensor:
        """Return ``[B, S, heads, D]``: over whole rows, inside each segment, or among the real tokens of each row.

        Raises:
            DeviceError: the package does not work on this device or in this precision.
        """
        _check_device(q)
        if within is None:
            return self.whole(q, k, v, dropout_p=dropout, causal=is_causal)
        return self.inside(within, q, k, v, dropout, is_causal)

    def inside(
        self, within: Segments | Lengths, q: Tensor, k: Tensor, v: Tensor, dropout: float, is_causal: bool = True
    ) -> Tensor:
        """Return ``[B, S, heads, D]``: attention inside each segment, or among the real tokens of each row."""
        rows, bounds, longest = q.shape[0], within.bounds, within.longest
        q, k, v = (within.pack(x) if isinstance(within, Lengths) else x.flatten(0, 1) for x in (q, k, v))
        mixed = self.packed(q, k, v, bounds, bounds, longest, longest, dropout_p=dropout, causal=is_causal)
        return within.unpack(mixed) if isinstance(within, Lengths) else mixed.unflatten(0, (rows, -1))

    def across(self, q: Tensor, k: Tensor, v: Tensor, dropout: float, lengths: Lengths | None) -> Tensor:
        """Return ``[B, D, heads, D]``: of every query over all keys ``[B, S, ...]`` of its row, or the real ones."""
        _check_device(q)
        if lengths is None:
            return self.whole(q, k, v, dropout_p=dropout, causal=False)
        rows, queries = q.shape[:2]
        every = torch.arange(0, (rows + 1) * queries, queries, dtype=torch.int32, device=q.device)
        packed = (q.flatten(0, 1), lengths.pack(k), lengths.pack(v))
        longest = queries, lengths.longest
        mixed = self.packed(*packed, every, lengths.bounds, *longest, dropout_p=dropout, causal=False)
        return mixed.unflatten(0, (rows, queries))


def _check_device(q: Tensor) -> None:
    if q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16):
        raise DeviceError(
            f"ATTENTION=flash works on nvidia and amd devices in bf16 or fp16, not on {q.device.type} in "
            f"{q.dtype}; use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        )


def load_flash() -> Flash:
    """Return the package's functions.

    Raises:
        DependencyError: it is not installed, or too old (below 2.0).
    """
    try:
        from flash_attn import flash_attn_func, flash_attn_varlen_func
    except ImportError as problem:
        raise DependencyError(
            f"ATTENTION=flash needs the package flash-attn ({problem}); "
            "pip install flash-attn --no-build-isolation, or use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        ) from None
    return Flash(flash_attn_func, flash_attn_varlen_func)


class Attention(nn.Module):
    """``out(softmax(q k^T / sqrt(D)) v)``, causal or not, with heads split over tensor and sequence ranks.

    Each tensor rank computes ``num_heads / t`` query heads and ``num_kv_heads / t`` key and
    value heads; consecutive query heads share a key/value head (GQA, arXiv 2305.13245). The
    three projections are one matrix, rows ``[q | k | v]``. Its sequence ranks project and rotate
    their own tokens and share out the heads for the softmax, see ``megads.parallel.ulysses``.

    Args:
        context: groups; whether the softmax is recomputed.
        rotary: rotates queries and keys; None: positions come from elsewhere.
        place: name of its dropout, see :meth:`megads.comm.rng.Draws.begin`.
        is_causal: whether a token attends to itself and those before it alone; else to all real ones of its row.

    Raises:
        ConfigError: the heads cannot be shared out.
        DependencyError: ``model.attention`` is flash and flash-attn is missing.
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
        super().__init__()
        groups = context.groups
        _check_heads(model, groups.tensor_size)
        self.head_dim, self.rotary = model.head_dim, rotary
        self.recompute, self.place, self.is_causal = context.recompute, place, is_causal
        self.seq_rank, self.seq_size = groups.seq_rank, groups.seq_size
        self.num_heads = model.num_heads // groups.tensor_size
        self.num_kv_heads = model.num_kv_heads // groups.tensor_size
        self.exchange = HeadExchange(self.num_heads, self.num_kv_heads, groups.seq) if groups.seq else None
        # How many query heads use each key head; None: all the same, which the kernels do by themselves.
        uses = self.exchange.share.uses if self.exchange else (1,)
        self.uses = uses if len(set(uses)) > 1 else None
        self.dropout = model.attention_dropout
        self.flash = load_flash() if model.attention == "flash" else None
        self.qkv = make_column("attention.qkv", layer, context)
        self.out = make_row("attention.out", layer, context)
        self.q_norm = make_head_norm("attention.q_norm", layer, model.norm_epsilon, context)
        self.k_norm = make_head_norm("attention.k_norm", layer, model.norm_epsilon, context)

    def forward(self, x: Tensor, documents: Documents | None = None, draws: Draws | None = None) -> Tensor:
        """Map ``[B, s, H]`` to ``[B, s, H]``; this rank's part of the sequence.

        Args:
            documents: where positions start again, and who attends to whom; None: rows are whole.
            draws: of the micro-batch; None: dropout uses the default generator as it is.
        """
        documents = documents or Documents()
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        heads = qkv.view(batch, length, sum(sizes), self.head_dim)
        context = documents.cache.context if documents.cache else self.seq_size * length
        where = TokenPositions(self.seq_rank * length, context, documents.positions)
        if self.rotary is not None and self.q_norm is None:
            q, k, v = self.rotary(heads, self.num_heads, self.num_kv_heads, where)
        else:
            q, k, v = heads.split(sizes, dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
            if self.rotary is not None:
                q, k = self.rotary.rotate(q, where), self.rotary.rotate(k, where)
        if self.exchange is not None:
            q, k, v = self.exchange.to_heads(q, k, v)
        if documents.cache is not None:
            mixed = documents.cache.attend(self.place, q, k, v, None)
        else:
            within = documents.segments or documents.lengths
            mixed = self.recompute.core(partial(self._attend, within, draws), q, k, v)
        if self.exchange is not None:
            mixed = self.exchange.to_tokens(mixed)
        return self.out(mixed.reshape(batch, length, -1))

    def _attend(self, within: Within, draws: Draws | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return ``softmax(q k^T / sqrt(D)) v`` of the heads at hand, ``[B, S, heads, D]``."""
        dropout = self.dropout if self.training else 0.0
        if self.uses is not None:
            k, v = spread_heads(k, self.uses), spread_heads(v, self.uses)
        if dropout > 0 and draws is not None:
            draws.begin(self.place, is_split=True)
        if self.flash is not None:
            return self.flash(q, k, v, dropout, within, self.is_causal)
        if isinstance(within, Segments):
            stacks = zip(within.stack(q), within.stack(k), within.stack(v), strict=True)
            return within.unstack([_sdpa(*each, dropout, is_causal=True) for each in stacks], len(q))
        # A causal query sees no padding behind it.
        mask = within.mask if within is not None and not self.is_causal else None
        return _sdpa(q, k, v, dropout, mask, is_causal=self.is_causal)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None, *, is_causal: bool) -> Tensor:
    shared = q.shape[2] != k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=shared
    )
    return mixed.transpose(1, 2)


def _check_heads(model: ModelConfig, degree: int) -> None:
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"HEADS={model.num_heads} is not a multiple of NUM_KV_HEAD={model.num_kv_heads}; "
            "every key/value head serves the same number of query heads"
        )
    if model.num_kv_heads % degree:
        raise ConfigError(
            f"NUM_KV_HEAD={model.num_kv_heads} key/value heads cannot be shared by TP={degree} ranks; "
            f"use a TP that divides {model.num_kv_heads}"
        )
    if model.position_embedding == "rope" and model.head_dim % 2:
        raise ConfigError(f"HEAD_DIM={model.head_dim} is odd; rotary positions pair channels, use an even HEAD_DIM")
