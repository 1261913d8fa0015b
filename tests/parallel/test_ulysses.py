"""Who computes which heads, and the exchange against plain indexing of the whole tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.errors import ConfigError
from megads.parallel.ulysses import NOT_COUNTED, HeadExchange, share_heads, split_batch, spread_heads
from tests.ranks import groups_of, run_ranks

SIZES = [
    (num_heads, num_kv_heads, size)
    for num_heads in range(1, 13)
    for num_kv_heads in range(1, num_heads + 1)
    if num_heads % num_kv_heads == 0
    for size in range(1, num_heads + 1)
]


def test_every_query_head_goes_to_one_rank_with_the_keys_it_uses():
    for num_heads, num_kv_heads, size in SIZES:
        shares = share_heads(num_heads, num_kv_heads, size)
        assert len(shares) == size
        assert [head for share in shares for head in share.queries] == list(range(num_heads))
        lengths = {len(share.queries) for share in shares}
        assert lengths <= {num_heads // size, -(-num_heads // size)}
        for share in shares:
            users = [head * num_kv_heads // num_heads for head in share.queries]
            assert list(share.keys) == sorted(set(users))
            # the keys as often as used are the queries' own, in order
            assert [key for key, use in zip(share.keys, share.uses, strict=True) for _ in range(use)] == users


def test_keys_are_not_repeated_where_the_ranks_divide_them():
    for num_heads, num_kv_heads, size in SIZES:
        if num_kv_heads % size == 0:
            keys = [key for share in share_heads(num_heads, num_kv_heads, size) for key in share.keys]
            assert keys == list(range(num_kv_heads))


def test_keys_are_repeated_as_little_as_even_shares_allow():
    found = set()
    for num_heads, num_kv_heads, size in SIZES:
        short, longs = divmod(num_heads, size)
        ratio = num_heads // num_kv_heads
        fewest = num_heads
        for long in itertools.combinations(range(size), longs):
            ends = list(itertools.accumulate((short + (rank in long) for rank in range(size)), initial=0))
            fewest = min(fewest, sum((b - 1) // ratio - a // ratio + 1 for a, b in itertools.pairwise(ends)))
        sent = sum(len(share.keys) for share in share_heads(num_heads, num_kv_heads, size))
        assert sent == fewest, (num_heads, num_kv_heads, size)
        found.add(sent - num_kv_heads)
    assert {0, 1, 2, 3} <= found


@pytest.mark.parametrize(
    ("sizes", "queries", "keys", "uses"),
    [
        ((8, 8, 4), [2, 2, 2, 2], [[0, 1], [2, 3], [4, 5], [6, 7]], [(1, 1)] * 4),
        ((8, 2, 4), [2, 2, 2, 2], [[0], [0], [1], [1]], [(2,)] * 4),
        ((6, 3, 2), [3, 3], [[0, 1], [1, 2]], [(2, 1), (1, 2)]),
        ((6, 3, 4), [2, 2, 1, 1], [[0], [1], [2], [2]], [(2,), (2,), (1,), (1,)]),
        ((7, 1, 3), [3, 2, 2], [[0], [0], [0]], [(3,), (2,), (2,)]),
    ],
)
def test_shares_of_known_models(sizes, queries, keys, uses):
    shares = share_heads(*sizes)
    assert [len(share.queries) for share in shares] == queries
    assert [list(share.keys) for share in shares] == keys
    assert [share.uses for share in shares] == uses


def test_more_ranks_than_query_heads_are_refused():
    with pytest.raises(ConfigError, match=r"SP=8 ranks cannot share 6 query heads .*; use SP=6 or less"):
        share_heads(6, 3, 8)


def test_heads_are_repeated_in_place_and_their_gradients_summed():
    x = torch.arange(6.0).view(1, 1, 3, 2).requires_grad_()
    y = spread_heads(x, (2, 1, 3))
    assert y[0, 0, :, 0].tolist() == [0, 0, 2, 4, 4, 4]
    y.sum().backward()
    assert x.grad[0, 0, :, 0].tolist() == [2, 1, 3]


def _exchange_equals_indexing(num_heads: int, num_kv_heads: int, batch: int, fused: bool) -> None:
    """Every head of every token arrives where the table says; gradients of repeated heads add up."""
    size, rank = dist.get_world_size(), dist.get_rank()
    exchange = HeadExchange(num_heads, num_kv_heads, groups_of(seq=size).seq)
    shares = share_heads(num_heads, num_kv_heads, size)
    generator = torch.Generator().manual_seed(2)
    counts = (num_heads, num_kv_heads, num_kv_heads)
    whole = torch.randn(batch, 3 * size, sum(counts), 5, dtype=torch.float64, generator=generator)
    mine = whole[:, 3 * rank : 3 * rank + 3].clone().requires_grad_()
    q, k, v = mine.split(counts, dim=2) if fused else (part.clone() for part in mine.split(counts, dim=2))
    got = exchange.to_heads(q, k, v)
    assert exchange.share == shares[rank]
    ranges = [(share.queries, share.keys, share.keys) for share in shares]
    for part, full, heads in zip(got, whole.split(counts, dim=2), ranges[rank], strict=True):
        assert torch.equal(part, full[:, :, list(heads)])
    weights = torch.randn(whole.shape, dtype=torch.float64, generator=generator)
    sum(
        (part * weights.split(counts, dim=2)[i][:, :, list(ranges[rank][i])]).sum() for i, part in enumerate(got)
    ).backward()
    for i, (grad, full) in enumerate(zip(mine.grad.split(counts, dim=2), weights.split(counts, dim=2), strict=True)):
        times = torch.tensor([sum(head in heads[i] for heads in ranges) for head in range(counts[i])])
        torch.testing.assert_close(grad, full[:, 3 * rank : 3 * rank + 3] * times[:, None])

    x = whole[:, :, list(shares[rank].queries)].clone().requires_grad_()
    y = exchange.to_tokens(x)
    assert torch.equal(y, whole[:, 3 * rank : 3 * rank + 3, :num_heads])
    (y * weights[:, 3 * rank : 3 * rank + 3, :num_heads]).sum().backward()
    assert torch.equal(x.grad, weights[:, :, list(shares[rank].queries)])


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 4), (8, 2), (8, 1), (6, 3), (7, 7), (5, 1)])
def test_exchange_equals_indexing(num_heads, num_kv_heads, size, batch, fused):
    run_ranks(size, _exchange_equals_indexing, num_heads, num_kv_heads, batch, fused)


def test_the_batch_is_cut_by_position():
    batch = torch.arange(26).view(2, 13)
    parts = [split_batch(batch, Groups(Grid(seq=4, tensor=2), rank)) for rank in range(8)]
    assert [part[0][0].tolist() for part in parts[::2]] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for tokens, labels in parts:
        assert torch.equal(labels, tokens + 1)
    assert torch.equal(parts[2][0], parts[3][0])


def test_labels_behind_an_end_of_document_do_not_count():
    batch = torch.tensor([[5, 0, 6, 7, 0]])
    # The label behind the 0 at position 1 lies on the first rank, whatever comes on the second.
    tokens, labels = split_batch(batch, Groups(Grid(seq=2), 0), eod=0)
    assert (tokens.tolist(), labels.tolist()) == ([[5, 0]], [[0, NOT_COUNTED]])
    assert split_batch(batch, Groups(Grid(seq=2), 1), eod=0)[1].tolist() == [[7, 0]]
    assert batch.tolist() == [[5, 0, 6, 7, 0]]


def test_a_sequence_that_can_not_be_cut_is_refused():
    with pytest.raises(
        ConfigError, match="SEQ=10 cannot be split over SP=4 ranks; use SEQ=12 or an SP that divides 10"
    ):
        split_batch(torch.zeros(1, 11, dtype=torch.int64), Groups(Grid(seq=4), 0))
