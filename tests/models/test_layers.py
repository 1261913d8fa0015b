"""Sequences cut over ranks (Ulysses, and scattered norms) against the whole model, in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from megads.comm.groups import Groups
from megads.comm.rng import draws_of
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.models.gpt import GPT
from megads.parallel.tensor import take_shard
from tests.models.noisy import ONE, build
from tests.models.shapes import SEQUENCE_KINDS
from tests.ranks import groups_of, run_ranks

KINDS = list(SEQUENCE_KINDS)
CPU = torch.device("cpu")


def _batch(model: ModelConfig, size: int) -> tuple[Tensor, Tensor]:
    """Return tokens and labels; whole parts of the sequence do not count."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, model.vocab_size, (size, model.seq_length + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    quarter = model.seq_length // 4
    if size == 1:
        labels[:, 2 * quarter :] = -100
    else:
        labels[:, quarter : 2 * quarter] = -100
        labels[0, :2] = -1
    return tokens[:, :-1], labels


class _Unchanged(nn.Module):
    """In the place of a layer that takes more than its input."""

    def forward(self, x: Tensor, *more: object) -> Tensor:
        return x


def _part(x: Tensor, groups: Groups) -> Tensor:
    return x.chunk(groups.seq_size, dim=1)[groups.seq_rank]


def _summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach().clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def _cut_model_matches_one_rank(kind: str, tensor: int, seq: int, scatter: bool) -> None:
    """Loss to 1e-12 and every gradient to 1e-10 of the gradient's largest element."""
    model, groups = SEQUENCE_KINDS[kind], groups_of(tensor=tensor, seq=seq)
    whole, cut = build(model, ONE), build(model, groups, scatter_norms=scatter)
    parameters = dict(cut.named_parameters())
    assert list(parameters) == [name for name, _ in whole.named_parameters()]
    for size in (1, 3):
        tokens, labels = _batch(model, size)
        whole.zero_grad()
        cut.zero_grad()
        weight = 1 / (labels >= 0).sum().double()
        expected = whole(tokens, labels)
        expected.backward()
        loss = cut(_part(tokens, groups), _part(labels, groups), weight)
        loss.backward()
        torch.testing.assert_close(_summed(loss, groups.seq), expected.detach(), rtol=1e-12, atol=0)
        for name, full in whole.named_parameters():
            mine = take_shard(full.grad, parameters[name].shard, groups.tensor_rank, tensor)
            scale = full.grad.abs().max()
            assert scale > 0, name
            assert (_summed(parameters[name].grad, groups.seq) - mine).abs().max() <= 1e-10 * scale, name
        logits = _part(whole(tokens), groups).chunk(tensor, dim=-1)[groups.tensor_rank]
        torch.testing.assert_close(cut(_part(tokens, groups)), logits, rtol=1e-10, atol=1e-10)


def _fits(kind: str, tensor: int, seq: int) -> bool:
    model = SEQUENCE_KINDS[kind]
    return model.num_kv_heads % tensor == 0 and seq <= model.num_heads // tensor


LAYOUTS = [(1, 2, False), (1, 4, False), (2, 1, True), (4, 1, True), (2, 2, False), (2, 2, True)]
LARGE = [(2, 4, False), (2, 4, True), (4, 2, False), (4, 2, True), (1, 8, False)]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "tensor", "seq", "scatter"), [(k, *layout) for layout in LAYOUTS for k in KINDS if _fits(k, *layout[:2])]
)
def test_cut_model_matches_one_rank(kind, tensor, seq, scatter):
    run_ranks(tensor * seq, _cut_model_matches_one_rank, kind, tensor, seq, scatter)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tensor", "seq", "scatter"), [(k, *layout) for layout in LARGE for k in KINDS if _fits(k, *layout[:2])]
)
def test_cut_model_matches_one_rank_on_eight_ranks(kind, tensor, seq, scatter):
    run_ranks(8, _cut_model_matches_one_rank, kind, tensor, seq, scatter)


def test_on_one_tensor_rank_scattering_changes_nothing():
    model = SEQUENCE_KINDS["gpt"]
    tokens, labels = _batch(model, 3)
    assert torch.equal(build(model, ONE, scatter_norms=True)(tokens, labels), build(model, ONE)(tokens, labels))


# What is sent

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send",
    "isend",
    "barrier",
)


@contextmanager
def _recorded() -> Iterator[Counter[str]]:
    """Count the calls of every collective."""
    calls: Counter[str] = Counter()

    def counting(name, call):
        def counted(*args, **kwargs):
            calls[name] += 1
            return call(*args, **kwargs)

        return counted

    names = {name: counting(name, getattr(dist, name)) for name in COLLECTIVES}
    with mock.patch.multiple(dist, **names):
        yield calls


def _calls_of_a_layer(kind: str, tensor: int, seq: int, scatter: bool, forward: dict, backward: dict) -> None:
    model, groups = SEQUENCE_KINDS[kind], groups_of(tensor=tensor, seq=seq)
    block = build(model, groups, scatter_norms=scatter).layers["1"]
    length = model.seq_length // seq // (tensor if scatter else 1)
    x = torch.randn(2, length, model.hidden_size, dtype=torch.float64, requires_grad=True)
    with _recorded() as calls:
        y = block(x)
    assert y.shape == x.shape
    assert y.is_contiguous()
    assert calls == forward
    with _recorded() as calls:
        y.sum().backward()
    assert calls == backward


EXCHANGE = {"all_to_all_single": 2}
PLAIN = {"all_reduce": 2}
GATHER = {"all_gather_into_tensor": 2, "reduce_scatter_tensor": 2}
BACK = {"all_gather_into_tensor": 4, "reduce_scatter_tensor": 2, "all_reduce": 2}


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["repeated", "gpt"])
@pytest.mark.parametrize(
    ("tensor", "seq", "scatter", "forward", "backward"),
    [
        (2, 1, False, PLAIN, PLAIN),
        (2, 1, True, GATHER, BACK),
        (1, 2, False, EXCHANGE, EXCHANGE),
        (1, 4, True, EXCHANGE, EXCHANGE),
        (2, 2, False, {**PLAIN, **EXCHANGE}, {**PLAIN, **EXCHANGE}),
        (2, 2, True, {**GATHER, **EXCHANGE}, {**BACK, **EXCHANGE}),
    ],
)
def test_calls_of_a_layer(kind, tensor, seq, scatter, forward, backward):
    run_ranks(tensor * seq, _calls_of_a_layer, kind, tensor, seq, scatter, forward, backward)


def _calls_of_the_ends() -> None:
    """Under scattered norms: tokens, positions, final norm and logits."""
    model, groups = SEQUENCE_KINDS["gpt"], groups_of(tensor=2)
    module = build(model, groups, scatter_norms=True)
    tokens, _ = _batch(model, 2)
    with _recorded() as calls:
        x = module.embed(tokens)
    assert calls == {"reduce_scatter_tensor": 1}
    assert x.shape == (2, model.seq_length // 2, model.hidden_size)
    with _recorded() as calls:
        x.sum().backward()
    assert calls == {"all_gather_into_tensor": 2}
    x = x.detach().requires_grad_()
    with _recorded() as calls:
        logits = module.logits(x)
    assert calls == {"all_gather_into_tensor": 1}
    with _recorded() as calls:
        logits.sum().backward()
    assert calls == {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1, "all_reduce": 1}


@pytest.mark.dist
def test_calls_of_the_ends():
    run_ranks(2, _calls_of_the_ends)


class _Copies(TorchDispatchMode):
    """Lists operators that copy."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("clone", "copy_", "cat", "contiguous", "index_select", "repeat_interleave", "empty", "new_empty"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["llama", "gqa", "gpt"])
def test_one_rank_sends_and_copies_nothing(kind):
    model = SEQUENCE_KINDS[kind]
    module = build(model, ONE)
    tokens, labels = _batch(model, 3)
    with _recorded() as calls:
        module(tokens, labels).backward()
    assert not calls
    x = module.embed(tokens)
    with _Copies() as copies:
        module.layers["0"](x)
    assert not copies.found


def _gathers_keep_only_a_part() -> None:
    """What scattered layers keep for the backward pass holds no gathered activation."""
    model, groups = SEQUENCE_KINDS["llama"], groups_of(tensor=2)
    block = build(model, groups, scatter_norms=True).layers["0"]
    x = torch.randn(2, model.seq_length // 2, model.hidden_size, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    wide = [tensor.shape for tensor in kept if tensor.ndim == 3 and tensor.shape[-1] == model.hidden_size]
    assert wide
    assert {tuple(shape[:2]) for shape in wide} == {(2, model.seq_length // 2)}


@pytest.mark.dist
def test_gathers_keep_only_a_part():
    run_ranks(2, _gathers_keep_only_a_part)


# Dropout


def _everyone(x: Tensor) -> list[Tensor]:
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return found


def _dropped_embeddings(tensor: int, seq: int, scatter: bool) -> None:
    """Two ranks drop alike exactly where they hold the same numbers."""
    groups = groups_of(tensor=tensor, seq=seq)
    model = SEQUENCE_KINDS["llama"].model_copy(update={"hidden_dropout": 0.5})
    module, draws = build(model, groups, scatter_norms=scatter), draws_of(1, 0, groups, CPU)
    module.embedding.weight.data.fill_(1.0)
    tokens = torch.zeros(2, model.seq_length // seq, dtype=torch.int64)
    dropped = (module.embed(tokens, None, draws) == 0).to(torch.uint8)
    assert 0.3 < dropped.double().mean() < 0.7
    patterns = _everyone(dropped)
    for rank, pattern in enumerate(patterns):
        for other in range(rank):
            same_part = rank // tensor == other // tensor and not scatter
            assert torch.equal(pattern, patterns[other]) == same_part, (rank, other)
    # And so in a layer: the residual stays as it is where both branches were dropped.
    block = module.layers["0"]
    block.attention, block.mlp = _Unchanged(), _Unchanged()
    hidden = torch.ones(2, dropped.shape[1], model.hidden_size, dtype=torch.float64)
    kept = _everyone((block(hidden, None, draws) == hidden).to(torch.uint8))
    assert torch.equal(kept[0], kept[1]) == (tensor > 1 and not scatter)


@pytest.mark.dist
@pytest.mark.parametrize(("tensor", "seq", "scatter"), [(1, 2, False), (2, 1, True), (2, 2, False), (2, 2, True)])
def test_ranks_drop_alike_only_what_they_share(tensor, seq, scatter):
    run_ranks(tensor * seq, _dropped_embeddings, tensor, seq, scatter)


def _dropped_weights() -> None:
    """Attention weights differ on every rank of both axes."""
    groups = groups_of(tensor=2, seq=2)
    model = SEQUENCE_KINDS["llama"].model_copy(update={"attention_dropout": 0.5})
    module, draws = build(model, groups), draws_of(1, 0, groups, CPU)
    ones = torch.ones(2, 16, 2, 4, dtype=torch.float64)
    mixed = _everyone(module.layers["0"].attention._attend(None, draws, ones, ones, ones))
    for rank, mine in enumerate(mixed):
        assert not any(torch.equal(mine, other) for other in mixed[:rank])


@pytest.mark.dist
def test_attention_weights_drop_differently_on_every_rank():
    run_ranks(4, _dropped_weights)


# Refusals and the loss


def _refused() -> None:
    model = SEQUENCE_KINDS["uneven"]
    with pytest.raises(ConfigError, match=r"SP=4 ranks cannot share 3 query heads \(HEADS / TP\).*use SP=3 or less"):
        GPT(model.model_copy(update={"num_heads": 3}), groups_of(seq=4))
    groups = groups_of(tensor=2, seq=2)
    module = build(SEQUENCE_KINDS["gpt"], groups, scatter_norms=True)
    with pytest.raises(ConfigError, match=r"the 7 tokens of a rank \(SEQ / SP\) cannot be split over TP=2 .* SEQ=16"):
        module.embed(torch.zeros(1, 7, dtype=torch.int64))
    with pytest.raises(ConfigError, match="a sequence of 24 tokens does not fit MAX_POSITIONS=20"):
        module.embed(torch.zeros(1, 12, dtype=torch.int64))


@pytest.mark.dist
def test_what_can_not_be_cut_is_refused():
    run_ranks(4, _refused)


def _labels_that_do_not_count() -> None:
    """Ignored labels give no NaN, also where none counts; labels beyond the vocabulary are refused."""
    model, groups = SEQUENCE_KINDS["gpt"], groups_of(tensor=dist.get_world_size())
    module = build(model, groups)
    tokens, _ = _batch(model, 2)
    nothing = torch.full_like(tokens, -100)
    for weight in (None, torch.tensor(0.25)):
        module.zero_grad()
        loss = module(tokens, nothing, weight)
        loss.backward()
        assert loss.item() == 0
        assert all((p.grad == 0).all() for p in module.parameters() if p.grad is not None)
    labels = tokens.clone()
    labels[0, 0] = -100
    labels[0, 1] = model.vocab_size
    with pytest.raises(IndexError, match=r"labels lie in 0 \.\. 53; the vocabulary has the tokens 0 \.\. 52"):
        module(tokens, labels)


@pytest.mark.dist
@pytest.mark.parametrize("degree", [1, 2])
def test_labels_that_do_not_count(degree):
    run_ranks(degree, _labels_that_do_not_count)
