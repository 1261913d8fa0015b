"""Keys and values of slots: what is stored is attended to, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megads.inference.cache import KeyValueCache

HEADS, KV, WIDTH, CONTEXT = 4, 2, 8, 40


def _cache(num_slots: int = 3) -> KeyValueCache:
    return KeyValueCache(
        ["a", "b"],
        num_slots=num_slots,
        num_kv_heads=KV,
        head_dim=WIDTH,
        context=CONTEXT,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


def _draw(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    sizes = ((length, HEADS, WIDTH), (length, KV, WIDTH), (length, KV, WIDTH))
    q, k, v = (torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes)
    return q, k, v


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of one sequence, its last token's."""
    k, v = (each.repeat_interleave(HEADS // KV, dim=1).transpose(0, 1) for each in (k, v))
    return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True)[:, -1]


def _feed(cache: KeyValueCache, sequences: list[tuple[Tensor, Tensor, Tensor]], lengths: list[int]) -> Tensor:
    """Prefill the first ``lengths`` tokens of each sequence together, and decode the next one."""
    longest = max(lengths)
    padded = [torch.stack([each[part][:longest] for each in sequences]) for part in range(3)]
    cache.begin_prefill(0, lengths)
    cache.attend("a", *padded)
    cache.begin_decode(torch.tensor(lengths))
    last = [
        torch.stack([each[part][n : n + 1] for each, n in zip(sequences, lengths, strict=True)]) for part in range(3)
    ]
    return cache.attend("a", *last)[:, 0]


@pytest.mark.parametrize("first_capacity", [2, 256])
def test_a_decoded_token_attends_to_its_own_sequence(monkeypatch, first_capacity):
    monkeypatch.setattr("megads.inference.cache.FIRST_CAPACITY", first_capacity)
    lengths = [5, 1, 9]
    sequences = [_draw(10, seed) for seed in range(3)]
    found = _feed(_cache(), sequences, lengths)
    for row, ((q, k, v), length) in enumerate(zip(sequences, lengths, strict=True)):
        torch.testing.assert_close(found[row], _plain(*(each[: length + 1] for each in (q, k, v))))


def test_what_a_slot_held_before_does_not_matter():
    sequences = [_draw(10, seed) for seed in range(2)]
    fresh = _feed(_cache(), sequences, [4, 2])
    used = _cache()
    bad = torch.full((2, 9, KV, WIDTH), 1e30, dtype=torch.float64)
    used.begin_prefill(0, [9, 9])
    used.attend("a", torch.zeros(2, 9, HEADS, WIDTH, dtype=torch.float64), bad, bad)
    torch.testing.assert_close(_feed(used, sequences, [4, 2]), fresh)


def test_slots_are_moved_and_reordered():
    cache, sequences = _cache(), [_draw(10, seed) for seed in range(3)]
    _feed(cache, sequences, [4, 4, 4])
    q, k, v = _draw(1, 9)
    cache.reorder(torch.tensor([2, 0]), 5)
    cache.begin_decode(torch.tensor([5, 5]))
    found = cache.attend("a", *(torch.stack([each, each]) for each in (q, k, v)))[:, 0]
    for row, source in enumerate((2, 0)):
        whole = [torch.cat([sequences[source][part][:5], new]) for part, new in enumerate((q, k, v))]
        torch.testing.assert_close(found[row], _plain(*whole))
    cache.move(1, 0, 6)
    cache.begin_decode(torch.tensor([6]))
    found = cache.attend("a", q[None], k[None], v[None])[0, 0]
    whole = [torch.cat([sequences[0][part][:5], new, new]) for part, new in enumerate((q, k, v))]
    torch.testing.assert_close(found, _plain(*whole))
