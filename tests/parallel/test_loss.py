"""Split cross entropy against torch's on the whole logits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from megads.parallel.loss import most_likely, vocab_parallel_cross_entropy
from tests.ranks import groups_of, run_ranks


def _matches_one_rank(vocab_size: int, padded: int, dtype: torch.dtype, tolerance: float) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = (5 * torch.randn(2, 6, padded)).to(dtype)
    # Padding larger than anything else, and columns that overflow a naive exponential.
    whole[..., vocab_size:] = 1000.0
    whole[0, 0, :vocab_size] += 500.0
    labels = torch.randint(0, vocab_size, (2, 6))
    labels[1, :2] = torch.tensor([0, vocab_size - 1])
    weight = torch.randn(2, 6)

    wide = torch.promote_types(dtype, torch.float32)
    reference = whole.clone().requires_grad_()
    expected = F.cross_entropy(reference[..., :vocab_size].to(wide).flatten(0, 1), labels.flatten(), reduction="none")
    (expected * weight.flatten()).sum().backward()

    local = whole.chunk(size, dim=-1)[rank].clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(local, labels, groups_of(tensor=size).tensor, vocab_size)
    (loss * weight).sum().backward()

    assert loss.dtype == wide
    assert local.grad.dtype == dtype
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(loss.flatten(), expected, **close)
    torch.testing.assert_close(local.grad, reference.grad.chunk(size, dim=-1)[rank], **close)
    first = max(vocab_size - rank * local.shape[-1], 0)
    assert torch.count_nonzero(local.grad[..., first:]) == 0


# 9 of 16 columns: with four ranks the last one holds nothing but padding.
@pytest.mark.dist
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize(("vocab_size", "padded"), [(16, 16), (13, 16), (9, 16)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 8e-3)]
)
def test_split_cross_entropy_matches_one_rank(degree, vocab_size, padded, dtype, tolerance):
    run_ranks(degree, _matches_one_rank, vocab_size, padded, dtype, tolerance)


def _wrong_labels() -> None:
    size = dist.get_world_size()
    for label in (-1, 13, 15):
        with pytest.raises(IndexError, match=r"the vocabulary has the tokens 0 \.\. 12"):
            vocab_parallel_cross_entropy(
                torch.zeros(1, 16 // size), torch.tensor([label]), groups_of(tensor=size).tensor, 13
            )


@pytest.mark.dist
@pytest.mark.parametrize("degree", [1, 2])
def test_labels_outside_the_vocabulary_are_refused(degree):
    run_ranks(degree, _wrong_labels)


def _finds_the_first_of_the_largest(vocab_size: int, padded: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    # Few values, so that many tokens have several largest ones.
    whole = torch.randint(0, 3, (4, 50, padded), generator=torch.Generator().manual_seed(1)).bfloat16()
    whole[..., vocab_size:] = 1000.0
    found = most_likely(whole.chunk(size, dim=-1)[rank], groups_of(tensor=size).tensor, vocab_size)
    torch.testing.assert_close(found, whole[..., :vocab_size].argmax(dim=-1))


@pytest.mark.parametrize(("ranks", "vocab_size"), [(1, 5), (2, 7), (2, 4), (2, 3)])
def test_the_most_likely_token_is_that_of_one_rank(ranks, vocab_size):
    run_ranks(ranks, _finds_the_first_of_the_largest, vocab_size, 8)
