"""Cross entropy in chunks of tokens against the whole logits: losses, gradients, drawn labels, the likeliest token."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from megads.parallel.linear_loss import LinearLoss
from megads.parallel.loss import draw_labels, most_likely, vocab_parallel_cross_entropy
from megads.parallel.tensor import column_parallel_linear
from tests.pairs import SEED
from tests.ranks import groups_of, run_ranks

WIDTH, PADDED = 8, 16


def _drawn(seed: int) -> dict:
    """Return a case: sizes, chunk, and what counts."""
    pick = random.Random(seed)
    rows, length = pick.choice([(1, 12), (2, 8), (3, 4)])
    return {
        "rows": rows,
        "length": length,
        "chunk": pick.choice([1, 4, 7, 10, 1000]),
        "vocab": pick.choice([16, 13, 8]),
        "has_bias": pick.random() < 0.5,
        "labels": pick.choice(["all", "some", "none", "drawn"]),
        "is_scattered": pick.random() < 0.5,
    }


def _labels(case: dict) -> torch.Tensor:
    shape = case["rows"], case["length"]
    if case["labels"] == "drawn":
        return torch.rand(shape, dtype=torch.float64).masked_fill(torch.rand(shape) < 0.2, -1.0)
    labels = torch.randint(0, case["vocab"], shape)
    share = {"all": 0.0, "some": 0.4, "none": 1.0}[case["labels"]]
    return labels.masked_fill(torch.rand(shape) < share, -100)


def _whole(x, weight, bias, labels, vocab):
    """Return losses and gradients by the logits of all tokens, on one rank."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    bias = bias.clone().requires_grad_() if bias is not None else None
    logits = F.linear(x, weight, bias)
    if labels.is_floating_point():
        labels = draw_labels(logits.detach(), labels, None, vocab)
    losses = vocab_parallel_cross_entropy(logits, labels.clamp(min=0), None, vocab).masked_fill(labels < 0, 0.0)
    (losses.sum() * 0.37).backward()
    return losses.detach(), [x.grad, weight.grad, bias.grad if bias is not None else None], logits.detach()


def _matches_whole_logits(seeds: list[int], dtype: torch.dtype, tolerance: float) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for seed in seeds:
        case = _drawn(seed)
        if case["labels"] == "drawn" and dtype != torch.float64:
            continue  # rounding may draw a neighbour
        torch.manual_seed(seed)
        x = torch.randn(case["rows"], case["length"], WIDTH).to(dtype)
        weight, bias = torch.randn(PADDED, WIDTH).to(dtype), torch.randn(PADDED).to(dtype)
        weight[case["vocab"] :] = 100.0  # logits of padding must not matter
        if not case["has_bias"]:
            bias = None
        labels = _labels(case)
        losses, gradients, logits = _whole(x, weight, bias, labels, case["vocab"])

        group = groups_of(tensor=size).tensor
        is_scattered = case["is_scattered"] and size > 1
        mine = x.chunk(size, dim=1)[rank] if is_scattered else x
        cut = [None if each is None else each.chunk(size)[rank].clone().requires_grad_() for each in (weight, bias)]
        mine = mine.clone().requires_grad_()
        loss = LinearLoss(group, case["vocab"], case["chunk"], is_scattered)
        total = loss.total(mine, *cut, labels)
        (total * 0.37).backward()

        close = {"rtol": tolerance, "atol": tolerance, "msg": lambda text, case=case: f"{case}: {text}"}
        torch.testing.assert_close(total.detach(), losses.sum(), **close)
        expected = gradients[0].chunk(size, dim=1)[rank] if is_scattered else gradients[0]
        torch.testing.assert_close(mine.grad, expected, **close)
        for found, each in zip(cut, gradients[1:], strict=True):
            if found is not None:
                torch.testing.assert_close(found.grad, each.chunk(size)[rank], **close)
                assert found.grad.dtype == dtype
        with torch.no_grad():
            torch.testing.assert_close(loss.total(mine, *cut, labels), total.detach(), **close)
            torch.testing.assert_close(loss.of_tokens(mine, *cut, labels), losses, **close)
            likely = loss.most_likely(mine, *cut, labels)
            if dtype == torch.float64:
                assert torch.equal(likely, most_likely(logits, None, case["vocab"])), case


@pytest.mark.dist
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 6e-2)]
)
def test_chunks_give_what_whole_logits_give(degree, dtype, tolerance):
    first = 1000 * SEED + 100 * degree
    run_ranks(degree, _matches_whole_logits, list(range(first, first + 12)), dtype, tolerance)


def _parts(dtype=torch.float64):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 6, WIDTH, dtype=dtype), torch.randn(PADDED, WIDTH, dtype=dtype)
    return x, weight, torch.randint(0, 13, (2, 6))


def test_only_what_needs_a_gradient_gets_one():
    x, weight, labels = _parts()
    for needs in (True, False), (False, True):
        given = [each.clone().requires_grad_(need) for each, need in zip((x, weight), needs, strict=True)]
        LinearLoss(None, 13, 4).total(given[0], given[1], None, labels).backward()
        assert [each.grad is not None for each in given] == list(needs)


def test_weight_gradients_of_many_chunks_are_summed_in_float32():
    """In bfloat16 a sum of 256 equal terms stops growing before its end."""
    x = torch.full((1, 512, WIDTH), 0.125, dtype=torch.bfloat16)
    weight = torch.zeros(PADDED, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    LinearLoss(None, 16, 1).total(x, weight, None, torch.zeros(1, 512, dtype=torch.int64)).backward()
    assert float(weight.grad[1, 0]) == pytest.approx(512 * 0.125 / 16, rel=1e-2)


def test_logits_of_more_than_a_chunk_never_stand(monkeypatch):
    x, weight, labels = _parts()
    seen = []
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda *given: seen.append(given[0].shape[0]) or linear(*given))
    LinearLoss(None, 13, 5).total(x, weight.requires_grad_(), None, labels).backward()
    assert seen == [5, 5, 2]


def test_labels_outside_the_vocabulary_are_refused():
    x, weight, labels = _parts()
    labels[1, 3] = 13
    with pytest.raises(IndexError, match=r"a label is 13; the vocabulary has the tokens 0 \.\. 12"):
        LinearLoss(None, 13, 4).total(x, weight, None, labels)


def test_a_second_backward_pass_is_refused():
    x, weight, labels = _parts()
    total = LinearLoss(None, 13, 4).total(x, weight.requires_grad_(), None, labels)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used by an earlier backward pass"):
        total.backward()


def _scattered_parallel_layer(chunk: int) -> None:
    """The plain path on the same ranks: output layer with gathered input, then the split cross entropy."""
    size, rank = dist.get_world_size(), dist.get_rank()
    group = groups_of(tensor=size).tensor
    x, weight, _ = _parts()
    labels = torch.randint(-2, 13, (2, 6))
    found = []
    for in_chunks in (False, True):
        mine = x.chunk(size, dim=1)[rank].clone().requires_grad_()
        cut = weight.chunk(size)[rank].clone().requires_grad_()
        if in_chunks:
            total = LinearLoss(group, 13, chunk, is_scattered=True).total(mine, cut, None, labels)
        else:
            logits = column_parallel_linear(mine, cut, None, group, scattered=True)
            losses = vocab_parallel_cross_entropy(logits, labels.clamp(min=0), group, 13)
            total = losses.masked_fill(labels < 0, 0.0).sum()
        total.backward()
        found.append((total.detach(), mine.grad, cut.grad))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.dist
@pytest.mark.parametrize("chunk", [2, 8])
def test_scattered_states_give_what_the_output_layer_gives(chunk):
    run_ranks(2, _scattered_parallel_layer, chunk)
