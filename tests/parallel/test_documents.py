"""Documents in rows, against definitions that go token by token."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.parallel.documents import Documents, find_documents, numbered_documents
from megads.plan.parts.activations import SHORTEST_IN_STACK

END = 3
ONE = Groups(Grid(), 0)


def rows(size: int, length: int, often: float, seed: int = 0) -> Tensor:
    """Return random tokens, of which about ``often`` are ends."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(END + 1, 50, (size, length), generator=generator)
    return tokens.masked_fill(torch.rand(size, length, generator=generator) < often, END)


def segment_numbers(row: list[int]) -> list[int]:
    """Return each token's segment: an end belongs to what precedes it."""
    numbers, current = [], 0
    for token in row:
        numbers.append(current)
        current += token == END
    return numbers


def positions_by_hand(row: list[int]) -> list[int]:
    positions, current = [], 0
    for token in row:
        positions.append(current)
        current = 0 if token == END else current + 1
    return positions


def mask_by_hand(tokens: Tensor) -> Tensor:
    """Return ``[B, 1, S, S]``: True where a token attends."""
    numbers = torch.tensor([segment_numbers(row) for row in tokens.tolist()])
    return (numbers[:, None, :, None] == numbers[:, None, None, :]).tril()


def found(tokens: Tensor, groups: Groups = ONE, *, positions: bool = True, attention: bool = True) -> Documents:
    documents = find_documents(tokens, END, groups, reset_positions=positions, reset_attention=attention)
    assert documents is not None
    return documents


@pytest.mark.parametrize(
    "row",
    [
        [5, 6, END, 7, 8, 9],
        [END, 5, 6, 7, 8, 9],
        [5, END, END, END, 6, 7],
        [5, END, 6, END, 7, END],
        [END] * 6,
    ],
    ids=str,
)
def test_positions_start_again_behind_an_end(row):
    tokens = torch.tensor([row, [5, 6, 7, 8, 9, 5]])
    expected = [positions_by_hand(row), [0, 1, 2, 3, 4, 5]]
    assert found(tokens, attention=False).positions.tolist() == expected
    parts = [found(tokens, Groups(Grid(seq=3), rank)).positions for rank in range(3)]
    assert torch.cat(parts, dim=1).tolist() == expected


@pytest.mark.parametrize("row", [[5, 6, 7, 8], [5, 6, 7, END]], ids=["no end", "an end at the end"])
def test_a_row_of_one_document_is_nothing_special(row):
    tokens = torch.tensor([row, row])
    assert find_documents(tokens, END, ONE, reset_positions=True, reset_attention=True) is None


def test_what_is_not_asked_for_is_not_there():
    tokens = torch.tensor([[5, END, 6, 7]])
    assert find_documents(tokens, END, ONE, reset_positions=False, reset_attention=False) is None
    assert found(tokens, positions=False).positions is None
    assert found(tokens, attention=False).segments is None


CASES = [(1, 1, 0.5), (3, 40, 0.02), (3, 40, 0.1), (2, 64, 0.5), (4, 33, 0.9), (2, 128, 0.05)]


@pytest.mark.parametrize(("size", "length", "often"), CASES)
def test_bounds_and_stacks_hold_every_token_once(size, length, often):
    tokens = rows(size, length + 1, often)
    tokens[0, 0] = END
    segments = found(tokens).segments
    numbers = [segment_numbers(row) for row in tokens.tolist()]
    lengths = [row.count(number) for row in numbers for number in dict.fromkeys(row)]
    assert segments.bounds.diff().tolist() == lengths
    assert segments.bounds.dtype == torch.int32
    assert segments.longest == max(lengths)
    assert segments.source[segments.place].tolist() == list(range(tokens.numel()))
    assert sum(count for count, _ in segments.stacks) == len(lengths)
    assert len(segments.source) <= tokens.numel() / SHORTEST_IN_STACK
    x = torch.randn(*tokens.shape, 2, 3)
    assert torch.equal(segments.unstack(segments.stack(x), len(tokens)), x)


def test_few_stacks_hold_many_segments():
    segments = found(rows(8, 4096, 0.02)).segments
    assert len(segments.bounds) > 600
    assert len(segments.stacks) < 25


@pytest.mark.parametrize(("size", "length", "often"), CASES)
@pytest.mark.parametrize("layout", ["rows", "fused", "by position"])
def test_attention_inside_stacks_is_masked_attention(layout, size, length, often):
    tokens = rows(size, length + 1, often)
    tokens[-1, 0] = END
    generator = torch.Generator().manual_seed(1)
    shape = (size, length + 1, 6, 4)
    if layout == "by position":  # as an exchange of heads leaves it
        fused = torch.randn(shape[1], size, *shape[2:], dtype=torch.float64, generator=generator).transpose(0, 1)
    else:
        fused = torch.randn(shape, dtype=torch.float64, generator=generator)
    if layout == "rows":
        ours = [x.clone().requires_grad_() for x in fused.split(2, dim=2)]
    else:
        ours = [x.detach().requires_grad_() for x in fused.split(2, dim=2)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    segments = found(tokens).segments
    parts = []
    for stack in zip(*map(segments.stack, ours), strict=True):
        q, k, v = (x.transpose(1, 2) for x in stack)
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))
    mixed = segments.unstack(parts, size)
    q, k, v = (x.transpose(1, 2) for x in theirs)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_by_hand(tokens)).transpose(1, 2)
    torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn(shape[0], shape[1], 2, 4, dtype=torch.float64, generator=generator)
    (mixed * weights).sum().backward()
    (expected * weights).sum().backward()
    for mine, whole in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, whole.grad, rtol=1e-10, atol=1e-12)


def test_documents_that_are_numbered_are_those_that_end_tokens_divide():
    tokens = torch.tensor([[5, END, 6, 7, END, 8], [END, END, 9, 9, 9, 9]])
    numbers = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 2, 2, 2, 2]])
    wanted = find_documents(tokens, END, ONE, reset_positions=True, reset_attention=True)
    found = numbered_documents(numbers, ONE)
    assert wanted is not None
    assert found is not None
    assert torch.equal(found.positions, wanted.positions)
    for name in ("source", "place", "bounds"):
        assert torch.equal(getattr(found.segments, name), getattr(wanted.segments, name))
    assert numbered_documents(torch.tensor([[0, 0, -1], [-1, -1, -1]]), ONE) is None
