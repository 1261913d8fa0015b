"""Documents that lie end to end in the rows of a batch: where positions start again, and who attends to whom.

A document ends with its end token, which belongs to it. The part of a document that lies in
one row is a segment. Everything here is made once for a micro-batch, of tokens that every
rank has, and is handed to the layers; nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megads.comm.groups import Groups
from megads.plan.parts.activations import SHORTEST_IN_STACK


@dataclass(frozen=True)
class Segments:
    """The segments of rows ``[B, S]``, for attention inside each.

    Segments of similar length are laid side by side as ``[n, L]``, with L that of the longest;
    behind a shorter one its last token is repeated. Causal attention over such a stack is
    what each segment gives alone: no token sees what is behind it, and what the repeated ones
    give is skipped. So the kernels need no mask, of which one would be S x S.

    Attributes:
        source: ``[N]`` int64: the token, counted along the rows, at every place of the stacks.
        place: ``[B * S]`` int64: where in the stacks each token is.
        stacks: n and L of every stack, the longest first.
        bounds: ``[segments + 1]`` int32: the token with which each segment begins, in the order of the rows,
            and the number of tokens; flash-attn's ``cu_seqlens``.
        longest: tokens of the longest segment.
    """

    source: Tensor
    place: Tensor
    stacks: tuple[tuple[int, int], ...]
    bounds: Tensor
    longest: int

    def stack(self, x: Tensor) -> list[Tensor]:
        """Return the stacks ``[n, L, ...]`` of ``x``, which is ``[B, S, ...]``."""
        laid = _Stack.apply(x, self.source, self.place)
        sizes = [count * length for count, length in self.stacks]
        return [part.unflatten(0, stack) for part, stack in zip(laid.split(sizes), self.stacks, strict=True)]

    def unstack(self, parts: Sequence[Tensor], rows: int) -> Tensor:
        """Return ``[rows, S, ...]``, of whose stacks ``parts`` are."""
        return _Unstack.apply(torch.cat([part.flatten(0, 1) for part in parts]), self.place, rows)


@dataclass(frozen=True)
class Lengths:
    """How many tokens of each row are real: padding behind them is no key of attention.

    What attention gives for padding itself carries no meaning.

    Attributes:
        tokens: ``[B]`` int64, each from 1 to ``whole``.
        whole: S, tokens of a row with its padding.
        mask: ``[B, 1, 1, S]`` bool: whether a key is real; the same for every query, so no mask is S x S.
    """

    tokens: Tensor
    whole: int
    mask: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mask = torch.arange(self.whole, device=self.tokens.device) < self.tokens.unsqueeze(1)
        object.__setattr__(self, "mask", mask[:, None, None])

    @cached_property
    def index(self) -> Tensor:
        """``[N]`` int64: the real tokens, counted along the rows. Waits for a device."""
        return self.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def bounds(self) -> Tensor:
        """``[B + 1]`` int32: where each row begins among the real tokens, and their number."""
        return F.pad(self.tokens.cumsum(0), (1, 0)).to(torch.int32)

    @property
    def longest(self) -> int:
        """No row is longer."""
        return self.whole

    def pack(self, x: Tensor) -> Tensor:
        """Return the real tokens ``[N, ...]`` of ``x``, which is ``[B, S, ...]``."""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, packed: Tensor) -> Tensor:
        """Return ``[B, S, ...]``, of which ``packed`` are the real tokens; zeros elsewhere."""
        rows = len(self.tokens)
        laid = packed.new_zeros(rows * self.whole, *packed.shape[1:])
        return laid.index_copy(0, self.index, packed).unflatten(0, (rows, -1))


class Cache(Protocol):
    """Keys and values of earlier tokens, of every layer; see ``megads.inference.cache``."""

    context: int
    """Positions of the longest sequence."""

    def attend(self, layer: str, q: Tensor, k: Tensor, v: Tensor, bias: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Store ``k`` and ``v`` ``[B, S, kv heads, D]`` and return the attention of ``q``, ``[B, S, heads, D]``.

        Args:
            bias: maps distances ``[B, S, K]`` (place of the key less that of the query) to what is added to scores,
                which are not scaled then, ``[B, heads, S, K]``; the same for all layers. None: nothing is added.
        """


class TextCache(Protocol):
    """Keys and values of texts that an encoder has read; see ``megads.inference.cross_cache``."""

    def across(
        self, layer: str, q: Tensor, encoded: Callable[[], tuple[Tensor, Tensor]], scale: float | None
    ) -> Tensor:
        """Return the attention of ``q``, ``[B, S, heads, D]``, to the encoder's output.

        Args:
            encoded: returns keys and values ``[B, E, kv heads, D]``; called once per text, and kept.
            scale: of the scores; None: ``1 / sqrt(D)``.
        """


@dataclass(eq=False)
class Neighbors:
    """The neighbours of the chunks of one micro-batch; each step fills in what it makes of them.

    Attributes:
        of_chunk: k, neighbours of a chunk.
        embedded: ``[B L k, r, H]``, their tokens' embeddings; None: none are looked at.
        encoded: the same behind the encoder; with sequence ranks of ``L + 1`` chunks, see ``megads.models.retro``.
    """

    of_chunk: int
    embedded: Tensor | None = None
    encoded: Tensor | None = None


@dataclass(frozen=True)
class Documents:
    """Where the tokens of one micro-batch are, and what they attend to.

    Attributes:
        positions: ``[B, S / SP]`` int64, of this sequence rank's tokens; None: those in the row.
        segments: of the whole rows; None: a token attends to all that precede it, or to all.
        cache: what the rows continue; None: they are whole.
        lengths: of the whole rows; None: nothing is padding.
        types: ``[B, S / SP]`` int64, the type of each of this sequence rank's tokens; None: they have none.
        encoder_tokens: of an encoder with a decoder, whose tokens lie one behind the other: how many of this
            sequence rank's are the encoder's, to which ``lengths`` belong; of rows with neighbours, which lie behind
            them: how many are the row's. None: SEQ / SP.
        relative: ``[buckets, heads / t]``, biases of relative positions; given by a layer to its attention.
        texts: keys and values of the encoder's output that are kept; None: they are computed.
        neighbors: of the chunks of the rows; None: the model looks at none.
    """

    positions: Tensor | None = None
    segments: Segments | None = None
    cache: Cache | None = None
    lengths: Lengths | None = None
    types: Tensor | None = None
    encoder_tokens: int | None = None
    relative: Tensor | None = None
    texts: TextCache | None = None
    neighbors: Neighbors | None = None


def find_documents(
    tokens: Tensor, end: int, groups: Groups, *, reset_positions: bool, reset_attention: bool
) -> Documents | None:
    """Return what documents that end inside the rows change; None where that is nothing.

    Waits for ``tokens``, where they are on a device.

    Args:
        tokens: ``[B, S]`` int64, whole rows; S a multiple of SP.
    """
    if not (reset_positions or reset_attention):
        return None
    here = tokens.cpu()
    begins = torch.zeros_like(here, dtype=torch.bool)
    begins[:, 1:] = here[:, :-1] == end
    if not begins.any():
        return None
    begins[:, 0] = True
    positions = _own_positions(begins, groups, tokens.device) if reset_positions else None
    return Documents(positions, _stacked(begins.flatten(), tokens.device) if reset_attention else None)


def numbered_documents(numbers: Tensor, groups: Groups) -> Documents | None:
    """Return what documents of which every token has the number change; None where no row has more than one.

    Args:
        numbers: ``[B, S]`` int64, whole rows, on the host or a device; of each row from 0 up, -1 for padding behind.
    """
    here = numbers.cpu()
    if not bool((here > 0).any()):
        return None  # padding behind the tokens changes nothing: attention is causal
    begins = torch.ones_like(here, dtype=torch.bool)
    begins[:, 1:] = here[:, 1:] != here[:, :-1]
    return Documents(_own_positions(begins, groups, numbers.device), _stacked(begins.flatten(), numbers.device))


def _own_positions(begins: Tensor, groups: Groups, device: torch.device) -> Tensor:
    """Return the positions of this sequence rank's tokens."""
    return _positions(begins).chunk(groups.seq_size, dim=1)[groups.seq_rank].to(device)


def _positions(begins: Tensor) -> Tensor:
    place = torch.arange(begins.shape[1]).expand(begins.shape)
    return place - place.masked_fill(~begins, 0).cummax(dim=1).values


def _stacked(begins: Tensor, device: torch.device) -> Segments:
    """Return the segments that begin where ``begins``, all rows end to end, says so."""
    starts = begins.nonzero().squeeze(1)
    bounds = torch.cat([starts, torch.tensor([len(begins)])])
    lengths = bounds.diff()
    order = lengths.argsort(descending=True, stable=True)
    sorted_lengths = lengths[order].tolist()
    sources, stacks = [], []
    place = torch.empty(len(begins), dtype=torch.int64)
    first = laid = 0
    while first < len(order):
        longest = sorted_lengths[first]
        last = first
        while last < len(order) and sorted_lengths[last] >= SHORTEST_IN_STACK * longest:
            last += 1
        which, step = order[first:last], torch.arange(longest)
        source = starts[which, None] + torch.minimum(step, lengths[which, None] - 1)
        # Of the places that hold one token the first is its own.
        own = step < lengths[which, None]
        place[source[own]] = laid + own.flatten().nonzero().squeeze(1)
        sources.append(source.flatten())
        stacks.append((last - first, longest))
        laid, first = laid + source.numel(), last
    return Segments(
        torch.cat(sources).to(device),
        place.to(device),
        tuple(stacks),
        bounds.to(device, torch.int32),
        sorted_lengths[0],
    )


class _Stack(Function):
    """Both directions copy rows and add none: what the repeated tokens give is not used, so their gradient is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.rows = x.shape[0]
        return x.flatten(0, 1).index_select(0, source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place).unflatten(0, (ctx.rows, -1)), None, None


class _Unstack(Function):
    @staticmethod
    def forward(ctx: Any, laid: Tensor, place: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.places = laid.shape[0]
        return laid.index_select(0, place).unflatten(0, (rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        laid = grad.new_zeros(ctx.places, *grad.shape[2:])
        return laid.index_copy_(0, place, grad.flatten(0, 1)), None, None
