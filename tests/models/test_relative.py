"""Relative positions: buckets, the table's bias, and attention with it. transformers' results: test_t5.py."""

from __future__ import annotations

import pytest
import torch

from megads.models.relative import attend_relative, bucket_of, relative_bias


def _bucket(distance: int, buckets: int, longest: int, causal: bool) -> int:
    """Return what arXiv 1910.10683 describes, with numpy's float32 as T5's own code has it."""
    import numpy as np

    first, away = 0, max(0, -distance)
    if not causal:
        buckets //= 2
        first, away = buckets * (distance > 0), abs(distance)
    exact = buckets // 2
    if away < exact:
        return first + away
    scale = np.log(np.float32(away) / np.float32(exact)) / np.float32(np.log(longest / exact))
    return first + min(buckets - 1, exact + int(scale * (buckets - exact)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (32, 100)])
def test_buckets_by_definition(buckets, longest, causal):
    distance = torch.arange(-300, 301)
    found = bucket_of(distance, buckets, longest, is_causal=causal)
    assert found.tolist() == [_bucket(each, buckets, longest, causal) for each in distance.tolist()]
    assert (found.min(), found.max()) == (0, buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 9), (9, 5)])
def test_a_bias_is_the_entry_of_its_distance(queries, keys, causal):
    table = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    bias = relative_bias(table, queries, keys, 10, is_causal=causal)
    assert bias.shape == (1, 3, queries, keys)
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    expected = table[bucket_of(distance, 8, 10, is_causal=causal)].permute(2, 0, 1)
    if causal:
        expected = expected.masked_fill(distance > 0, -torch.inf)
    torch.testing.assert_close(bias[0], expected, rtol=0, atol=0)
    weights = torch.randn(3, queries, keys, dtype=torch.float64)
    sums = [torch.where(each.isinf(), 0.0, each * weights).sum() for each in (bias[0], expected)]
    torch.testing.assert_close(*(torch.autograd.grad(each, table)[0] for each in sums))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_padding_has_no_weight_in_any_type(dtype):
    """The row of its real tokens alone gives the same; scores are not scaled."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 6, 3, 8, generator=generator).to(dtype) for _ in range(3))
    bias = torch.randn(1, 3, 6, 6, generator=generator).to(dtype)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]
    mixed = attend_relative(q, k, v, bias, real, 0.0)
    changed = v.clone()
    changed[1, 4:] = 1000
    assert torch.equal(attend_relative(q, k, changed, bias, real, 0.0), mixed)
    alone = attend_relative(*(x[1:, :4] for x in (q, k, v)), bias[..., :4, :4], None, 0.0)
    near = 1e-12 if dtype == torch.float64 else 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(mixed[1:, :4], alone, rtol=near, atol=near)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) + bias.double()
    weights = scores.masked_fill(~real, -torch.inf).softmax(dim=-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, v.double())
    torch.testing.assert_close(mixed.double(), expected, rtol=near, atol=4 * near)
