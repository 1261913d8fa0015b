"""Keys and values of texts: computed once, and attended to by the slot that they belong to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.inference.cross_cache import CrossCache

HEADS, KV, WIDTH, CONTEXT = 4, 2, 8, 12
Pair = tuple[Tensor, Tensor]


def _cache() -> CrossCache:
    return CrossCache(
        ["own"],
        ["a", "b"],
        num_slots=4,
        num_kv_heads=KV,
        head_dim=WIDTH,
        context=CONTEXT,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


def _text(length: int, seed: int) -> Pair:
    draw = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, length, KV, WIDTH, generator=draw, dtype=torch.float64)
    return k, v


def _padded(texts: list[Pair]) -> Pair:
    """Return both as ``[B, E, KV, WIDTH]``; NaN would be an error, so padding is large."""
    longest = max(len(k) for k, _ in texts)
    k, v = (
        torch.stack([F.pad(each[part], (0, 0, 0, 0, 0, longest - len(each[part])), value=50.0) for each in texts])
        for part in (0, 1)
    )
    return k, v


def _plain(q: Tensor, text: Pair) -> Tensor:
    """Return the attention of ``[S, heads, D]`` to one text."""
    k, v = (each.repeat_interleave(HEADS // KV, dim=1).transpose(0, 1) for each in text)
    return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, scale=1.0).transpose(0, 1)


def _never() -> Pair:
    raise AssertionError("computed again")


def _queries(rows: int, seed: int = 9) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, HEADS, WIDTH, generator=draw, dtype=torch.float64)


def _begin(cache: CrossCache, first: int, texts: list[Pair]) -> None:
    cache.begin_texts(first, [1] * len(texts), [len(k) for k, _ in texts])
    q, both = _queries(len(texts), first), _padded(texts)
    for layer in ("a", "b"):
        mixed = cache.across(layer, q, lambda: both, 1.0)
        torch.testing.assert_close(mixed, torch.stack([_plain(*each) for each in zip(q, texts, strict=True)]))


def _assert_slots(cache: CrossCache, texts: list[Pair]) -> None:
    cache.begin_decode(torch.ones(len(texts), dtype=torch.int64))
    q = _queries(len(texts))
    wanted = torch.stack([_plain(*each) for each in zip(q, texts, strict=True)])
    for layer in ("a", "b"):
        torch.testing.assert_close(cache.across(layer, q, _never, 1.0), wanted)


def test_slots_keep_their_texts_while_others_come_and_memory_grows():
    cache, texts = _cache(), [_text(length, length) for length in (3, 1, 12, 5)]
    _begin(cache, 0, texts[:2])
    _assert_slots(cache, texts[:2])
    _begin(cache, 2, texts[2:])
    _assert_slots(cache, texts)
    cache.move(3, 0, 1)
    _assert_slots(cache, [texts[3], *texts[1:3]])
    _begin(cache, 1, [texts[1]])
    _assert_slots(cache, [texts[3], texts[1]])


def test_beams_of_a_text_share_it_and_other_texts_are_exchanged():
    cache, texts = _cache(), [_text(length, length) for length in (4, 7)]
    _begin(cache, 0, texts)
    cache.reorder(torch.tensor([1, 0, 0, 1]), 1)
    _assert_slots(cache, [texts[1], texts[0], texts[0], texts[1]])
    copied: list[object] = []
    cache._copy_texts = lambda *slots: copied.append(slots)  # type: ignore[method-assign]
    cache.reorder(torch.tensor([3, 2, 1, 0]), 1)
    assert copied == []
    _assert_slots(cache, [texts[1], texts[0], texts[0], texts[1]])
