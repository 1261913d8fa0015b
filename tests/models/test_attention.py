"""Attention: heads that fit, documents in a row as each alone, and the flash-attn package."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megads.comm.groups import Groups
from megads.comm.rng import Draws
from megads.errors import ConfigError, DependencyError
from megads.families.decoder import spec_of
from megads.families.spec import by_name
from megads.models.attention import Attention, Flash
from megads.models.gpt import GPT
from megads.models.layers import Context
from megads.parallel.documents import Documents, Lengths, find_documents
from megads.parallel.recompute import Recompute, reentrant_checkpoint
from megads.parallel.tensor import full_shape, take_shard
from tests.models import shapes
from tests.models.noisy import ONE, build
from tests.models.shapes import SEQUENCE_KINDS
from tests.parallel.test_documents import END, mask_by_hand, rows
from tests.ranks import groups_of, run_ranks

CPU = torch.device("cpu")
BOTH = {"reset_positions": True, "reset_attention": True}


def batch(size: int = 3, often: float = 0.2) -> tuple[Tensor, Tensor]:
    """Return tokens and labels: a row of one document, rows of several, of one token too, and two ends in a row."""
    tokens = rows(size, 17, often)
    tokens[0] = tokens[0].masked_fill(tokens[0] == END, 9)
    tokens[1, 3:5] = END
    return tokens[:, :-1], tokens[:, 1:]


def one_by_one(module: GPT, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and mean loss of documents that the model is given alone."""
    logits = []
    for row in tokens:
        ends = [i + 1 for i, token in enumerate(row.tolist()) if token == END and i + 1 < len(row)]
        logits.append(torch.cat([module(piece[None])[0] for piece in row.tensor_split(ends)]))
    whole = torch.stack(logits)
    return whole, module.loss(whole, labels)


def gradients(module: GPT, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in module.named_parameters()}


def assert_near(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name, full in theirs.items():
        scale = full.abs().max()
        assert scale > 0, name
        assert (ours[name] - full).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("kind", SEQUENCE_KINDS)
def test_a_packed_document_is_a_document_alone(kind, dtype, tolerance):
    module = build(SEQUENCE_KINDS[kind]).to(dtype)
    tokens, labels = batch()
    documents = find_documents(tokens, END, ONE, **BOTH)
    logits = module(tokens, documents=documents)
    loss = module(tokens, labels, documents=documents)
    expected, expected_loss = one_by_one(module, tokens, labels)
    assert (logits - expected).abs().max() <= tolerance * expected.abs().max()
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=0)
    assert_near(gradients(module, loss), gradients(module, expected_loss), tolerance)
    assert (module(tokens) - expected)[1].abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_half_precision_stays_near_single(kind):
    module = build(SEQUENCE_KINDS[kind]).float()
    tokens, labels = batch()
    documents = find_documents(tokens, END, ONE, **BOTH)
    expected = module(tokens, labels, documents=documents)
    torch.testing.assert_close(module.bfloat16()(tokens, labels, documents=documents), expected, rtol=0.05, atol=0)


def test_inside_a_document_rotary_positions_may_begin_anywhere():
    tokens, _ = batch()
    attention = find_documents(tokens, END, ONE, reset_positions=False, reset_attention=True)
    for kind, matters in (("llama", False), ("gqa", False), ("gpt", True)):
        module = build(SEQUENCE_KINDS[kind])
        expected, _ = one_by_one(module, tokens, tokens)
        difference = (module(tokens, documents=attention) - expected).abs().max()
        assert (difference > 1e-3) if matters else (difference < 1e-9), kind


@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_positions_alone_leave_attention_whole(kind):
    module = build(SEQUENCE_KINDS[kind])
    tokens, _ = batch()
    documents = find_documents(tokens, END, ONE, reset_positions=True, reset_attention=False)
    before = module(tokens, documents=documents)
    changed = tokens.clone()
    changed[1, 0] = 11  # in the row's first document; positions and ends stay
    after = module(changed, documents=documents)
    assert (before - after)[1, 8:].abs().max() > 1e-6
    assert (before - module(tokens))[1, 8:].abs().max() > 1e-6
    packed = find_documents(tokens, END, ONE, **BOTH)
    assert torch.equal(module(changed, documents=packed)[1, 4:], module(tokens, documents=packed)[1, 4:])


# Layouts


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach().clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def _cut_model_matches_alone(kind: str, tensor: int, seq: int, scatter: bool, recompute: Recompute) -> None:
    """Loss to 1e-12 and every gradient to 1e-10 of the gradient's largest element."""
    model, groups = SEQUENCE_KINDS[kind], groups_of(tensor=tensor, seq=seq)
    whole, cut = build(model), build(model, groups, scatter_norms=scatter, recompute=recompute)
    for size in (2, 3):
        tokens, labels = batch(size)
        _, expected = one_by_one(whole, tokens, labels)
        wanted = gradients(whole, expected)
        documents = find_documents(tokens, END, groups, **BOTH)
        mine = [x.chunk(seq, dim=1)[groups.seq_rank] for x in (tokens, labels)]
        cut.zero_grad()
        loss = cut(*mine, torch.tensor(1 / labels.numel(), dtype=torch.float64), documents)
        loss.backward()
        torch.testing.assert_close(_sum(loss, groups.seq), expected.detach(), rtol=1e-12, atol=0)
        ours = {name: _sum(weight.grad, groups.seq) for name, weight in cut.named_parameters()}
        shards = {name: weight.shard for name, weight in cut.named_parameters()}
        full = {name: take_shard(grad, shards[name], groups.tensor_rank, tensor) for name, grad in wanted.items()}
        assert_near(ours, full, 1e-10)


PLAIN = Recompute()
LAYOUTS = [
    ("llama", 2, 1, False, PLAIN),
    ("gpt", 2, 1, True, PLAIN),
    ("gqa", 2, 1, True, Recompute("full", num_layers=2)),
    ("gpt", 1, 2, False, PLAIN),
    ("uneven", 1, 2, False, Recompute("selective")),
    ("mqa", 1, 2, False, Recompute("full", checkpoint=reentrant_checkpoint)),
    ("gpt", 2, 2, True, Recompute("full", "block", 1)),
    ("gqa", 2, 2, False, Recompute("selective", checkpoint=reentrant_checkpoint)),
]


@pytest.mark.dist
@pytest.mark.parametrize(("kind", "tensor", "seq", "scatter", "recompute"), LAYOUTS)
def test_cut_model_matches_documents_alone(kind, tensor, seq, scatter, recompute):
    run_ranks(tensor * seq, _cut_model_matches_alone, kind, tensor, seq, scatter, recompute)


# Recomputation, dropout, no documents


@pytest.mark.parametrize("kind", ["gqa", "gpt"])
@pytest.mark.parametrize(
    "recompute",
    [
        {"granularity": "selective"},
        {"granularity": "full", "num_layers": 2},
        {"granularity": "full", "method": "block"},
        {"granularity": "full", "checkpoint": reentrant_checkpoint},
    ],
    ids=["selective", "full", "block", "reentrant"],
)
def test_micro_batches_under_way_keep_their_own_documents(kind, recompute):
    """Both forward passes come first, as in a pipeline; with dropout, and not a bit of difference."""
    model = SEQUENCE_KINDS[kind].model_copy(update={"hidden_dropout": 0.2, "attention_dropout": 0.2})
    results = []
    for plan in ({}, recompute):
        module = build(model, recompute=Recompute(**plan))
        parts = [batch(3, often) for often in (0.1, 0.5)]
        losses = [
            module(*part, documents=find_documents(part[0], END, ONE, **BOTH), draws=Draws(3, 3 * i, 0, 0, CPU))
            for i, part in enumerate(parts)
        ]
        for loss in reversed(losses):
            loss.backward()
        results.append([*losses, *(weight.grad for weight in module.parameters())])
    for kept, again in zip(*results, strict=True):
        assert torch.equal(kept, again)


def test_dropout_acts_on_documents():
    model = SEQUENCE_KINDS["gqa"].model_copy(update={"attention_dropout": 0.5})
    module = build(model)
    tokens, labels = batch()
    documents = find_documents(tokens, END, ONE, **BOTH)
    draws = [Draws(1, sample, 0, 0, CPU) for sample in (0, 3, 6)]
    assert len({module(tokens, labels, documents=documents, draws=each).item() for each in draws}) == 3
    module.eval()
    _, expected = one_by_one(module, tokens, labels)
    torch.testing.assert_close(module(tokens, labels, documents=documents), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", SEQUENCE_KINDS)
def test_documents_that_change_nothing_change_no_bit(kind):
    module = build(SEQUENCE_KINDS[kind]).float()
    tokens, labels = batch()
    tokens = tokens.masked_fill(tokens == END, 9)
    assert find_documents(tokens, END, ONE, **BOTH) is None
    plain, empty = module(tokens, labels), module(tokens, labels, documents=Documents())
    assert torch.equal(plain, empty)
    ours, theirs = gradients(module, empty), gradients(module, plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    given = Documents(torch.arange(16).expand(3, 16))
    torch.testing.assert_close(module(tokens, labels, documents=given), plain, rtol=1e-6, atol=0)


# The flash-attn package, by the definition of its functions


def varlen_by_definition(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, causal=False):
    """``[tokens, heads, D]``: sequence i is the tokens ``cu_seqlens[i] .. cu_seqlens[i + 1]``."""
    assert dropout_p == 0.0
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    longest = int(cu_seqlens_q.diff().max())
    assert max_seqlen_q == max_seqlen_k == longest if causal else max_seqlen_q == max_seqlen_k >= longest
    repeat = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for first, last in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True):
        keys, values = (x[first:last].repeat_interleave(repeat, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first:last], keys) / q.shape[-1] ** 0.5
        future = torch.ones(last - first, last - first, dtype=torch.bool).triu(1) if causal else torch.tensor(False)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flash_attention_is_given_the_segments(kv_heads):
    tokens, _ = batch()
    segments = find_documents(tokens, END, ONE, **BOTH).segments
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(3, 16, heads, 8, generator=generator) for heads in (4, kv_heads, kv_heads))

    mixed = Flash(no_whole, varlen_by_definition).inside(segments, q, k, v, 0.0)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask_by_hand(tokens), enable_gqa=True
    )
    torch.testing.assert_close(mixed, expected.transpose(1, 2))


def no_whole(*args: object, **kwargs: object) -> Tensor:
    raise AssertionError("the rows are not whole")


# Both directions, with padding


def attention_of(kind: str, groups: Groups = ONE) -> Attention:
    """Return attention in both directions, float64, with weights that do not depend on the layout."""
    model = SEQUENCE_KINDS[kind]
    module = Attention(model, by_name(spec_of(model).layer), Context(groups), None, is_causal=False).double()
    for name, weight in module.named_parameters():
        whole = torch.randn(full_shape(weight.shape, weight.shard), generator=torch.Generator().manual_seed(len(name)))
        weight.data = take_shard(whole.double() / 4, weight.shard, groups.tensor_rank, groups.tensor_size)
    return module


def padded_rows() -> tuple[Tensor, Lengths]:
    x = torch.randn(3, 16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return x, Lengths(torch.tensor([16, 9, 1]), 16)


@pytest.mark.parametrize("kind", ["gpt", "gqa", "mqa"])
def test_padding_is_no_key(kind):
    """A padded row is the row of its real tokens alone, and each of them attends to those behind it as well."""
    attention = attention_of(kind)
    x, lengths = padded_rows()
    mixed = attention(x, Documents(lengths=lengths))
    assert lengths.mask.shape == (3, 1, 1, 16)
    for row, length in enumerate(lengths.tokens.tolist()):
        alone = attention(x[row : row + 1, :length])
        torch.testing.assert_close(mixed[row : row + 1, :length], alone, rtol=1e-12, atol=1e-12)
        if length > 1:
            changed = x[row : row + 1, :length].clone()
            changed[:, -1] += 1
            assert (attention(changed) - alone)[:, 0].abs().max() > 1e-3


def _cut_attention_matches_whole(kind: str, tensor: int, seq: int) -> None:
    groups = groups_of(tensor=tensor, seq=seq)
    x, lengths = padded_rows()
    real, mine = lengths.mask[:, 0, 0, :, None], slice(groups.seq_rank * 16 // seq, (groups.seq_rank + 1) * 16 // seq)
    whole, split = attention_of(kind), attention_of(kind, groups)
    x.requires_grad_()
    expected = whole(x, Documents(lengths=lengths))
    (expected * real).square().sum().backward()
    part = x.detach()[:, mine].requires_grad_()
    mixed = split(part, Documents(lengths=lengths))
    torch.testing.assert_close(mixed * real[:, mine], (expected * real)[:, mine], rtol=1e-12, atol=1e-12)
    (mixed * real[:, mine]).square().sum().backward()
    torch.testing.assert_close(part.grad, x.grad[:, mine], rtol=1e-10, atol=1e-12)
    for name, weight in whole.named_parameters():
        here = dict(split.named_parameters())[name]
        full = take_shard(weight.grad, here.shard, groups.tensor_rank, tensor)
        torch.testing.assert_close(_sum(here.grad, groups.seq), full, rtol=1e-10, atol=1e-12)


@pytest.mark.dist
@pytest.mark.parametrize(("kind", "tensor", "seq"), [("gpt", 2, 2), ("gqa", 1, 2), ("mqa", 1, 2)])
def test_attention_in_both_directions_in_a_layout(kind, tensor, seq):
    run_ranks(tensor * seq, _cut_attention_matches_whole, kind, tensor, seq)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flash_attention_is_given_the_real_tokens(kv_heads):
    lengths = Lengths(torch.tensor([16, 9, 1]), 16)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(3, 16, n, 8, generator=generator).requires_grad_() for n in (4, kv_heads, kv_heads))
    mixed = Flash(no_whole, varlen_by_definition).inside(lengths, q, k, v, 0.0, is_causal=False)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=lengths.mask, enable_gqa=True
    ).transpose(1, 2)
    real = lengths.mask[:, 0, 0, :, None, None]
    torch.testing.assert_close(mixed, expected * real)
    found, wanted = (torch.autograd.grad((y * real).square().sum(), (q, k, v)) for y in (mixed, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_kv_heads": 3}, "HEADS=8 is not a multiple of NUM_KV_HEAD=3"),
        ({"head_dim": 5}, "HEAD_DIM=5 is odd"),
    ],
)
def test_heads_that_do_not_fit_are_refused(changes, told):
    with pytest.raises(ConfigError, match=told):
        GPT(shapes.LLAMA.model_copy(update=changes), ONE)


def _too_few_kv_heads() -> None:
    model = shapes.LLAMA.model_copy(update={"num_kv_heads": 2})
    with pytest.raises(ConfigError, match="NUM_KV_HEAD=2 key/value heads cannot be shared by TP=4 ranks"):
        GPT(model, groups_of(tensor=4))


@pytest.mark.dist
def test_fewer_kv_heads_than_ranks_are_refused():
    run_ranks(4, _too_few_kv_heads)


def test_flash_attention_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(DependencyError, match="pip install flash-attn --no-build-isolation, or use ATTENTION=sdpa"):
        GPT(shapes.LLAMA.model_copy(update={"attention": "flash"}), ONE)
