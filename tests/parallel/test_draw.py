"""Labels drawn from the model's own distribution."""

import pytest
import torch

from megads.parallel.loss import draw_labels
from tests.ranks import groups_of, run_ranks

VOCAB, PADDED = 13, 16
LOGITS = 2 * torch.randn(PADDED, generator=torch.Generator().manual_seed(3))
DRAWS = 40_000


def logits_and_numbers(rows: int = 4, length: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(rows, length, PADDED, generator=generator)
    # What stands in padded columns must not matter.
    logits[..., VOCAB:] = 50.0
    numbers = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    numbers[0, 0], numbers[0, 1], numbers[0, 2] = 0.0, 1 - 2**-53, -1.0
    return logits, numbers


def by_search(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the same by torch's own search of the distribution function."""
    ends = logits[..., :VOCAB].double().softmax(dim=-1).cumsum(dim=-1)
    found = torch.searchsorted(ends, numbers.clamp(min=0).unsqueeze(-1), right=True).squeeze(-1)
    return found.clamp(max=VOCAB - 1).masked_fill(numbers < 0, -1)


def test_labels_have_the_distribution_of_the_logits():
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(1, DRAWS, generator=generator, dtype=torch.float64)
    labels = draw_labels(LOGITS.expand(1, DRAWS, PADDED), numbers, None, VOCAB)
    expected = DRAWS * LOGITS[:VOCAB].double().softmax(dim=0)
    counts = torch.bincount(labels.flatten(), minlength=VOCAB)
    assert len(counts) == VOCAB, "a padded column was drawn"
    square = float(((counts - expected).square() / expected).sum())
    assert square < 32.9, "chi-square with 12 degrees of freedom is beyond that once in a thousand"
    # The measure is strict: it tells the distribution of logits that are 5 % larger.
    other = DRAWS * (1.05 * LOGITS[:VOCAB]).double().softmax(dim=0)
    assert float(((counts - other).square() / other).sum()) > 32.9


def test_a_label_is_where_the_distribution_passes_its_number():
    logits, numbers = logits_and_numbers()
    labels = draw_labels(logits, numbers, None, VOCAB)
    assert torch.equal(labels, by_search(logits, numbers))
    assert labels[0, 2] == -1
    assert labels[0, 0] == 0
    assert labels.max() < VOCAB


def draws_what_one_rank_draws(degree: int) -> None:
    logits, numbers = logits_and_numbers()
    groups = groups_of(tensor=degree)
    mine = logits.chunk(degree, dim=-1)[groups.tensor_rank]
    assert torch.equal(draw_labels(mine, numbers, groups.tensor, VOCAB), draw_labels(logits, numbers, None, VOCAB))


@pytest.mark.parametrize("degree", [2, 4])
def test_every_tensor_parallel_degree_draws_the_same(degree):
    """Of 13 columns in 16 the last of four ranks has a single real one."""
    run_ranks(degree, draws_what_one_rank_draws, degree)


def draws_beside_a_rank_of_padding() -> None:
    groups = groups_of(tensor=4)
    logits, numbers = logits_and_numbers()
    mine = logits.chunk(4, dim=-1)[groups.tensor_rank]
    expected = draw_labels(logits, numbers, None, 8)
    assert torch.equal(draw_labels(mine, numbers, groups.tensor, 8), expected)


def test_ranks_may_have_padding_only():
    run_ranks(4, draws_beside_a_rank_of_padding)


def test_many_tokens_go_in_parts(monkeypatch):
    logits, numbers = logits_and_numbers()
    expected = draw_labels(logits, numbers, None, VOCAB)
    monkeypatch.setattr("megads.parallel.loss.AT_ONCE", 5 * PADDED)
    assert torch.equal(draw_labels(logits, numbers, None, VOCAB), expected)
