"""Retro against a reference that is written token by token; who sees what; cut models against the whole. float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.models.gpt import GPT
from megads.parallel.documents import Documents
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import take_shard
from tests.models.noisy import build
from tests.models.retro_reference import Reference
from tests.models.shapes import RETROS
from tests.ranks import groups_of, run_ranks

ROWS = 2


def batch_of(model: ModelConfig, length: int, chunks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, neighbours ``[B, L, k, r]`` and labels."""
    generator = torch.Generator().manual_seed(5)
    retrieved = model.retro_chunk_length * model.retro_retrieved_chunks
    sizes = (length,), (chunks, model.retro_num_neighbors, retrieved), (length,)
    text, neighbors, labels = (torch.randint(model.vocab_size, (ROWS, *size), generator=generator) for size in sizes)
    neighbors[:, -1, :, retrieved // 2 :] = 0  # what is padding is read as any other token
    labels[1, 5:7] = -1
    return text, neighbors, labels


def logits_of(module: GPT, text: Tensor, neighbors: Tensor) -> Tensor:
    documents = Documents(encoder_tokens=text.shape[1])
    return module(torch.cat([text, neighbors.flatten(1)], dim=1), documents=documents)


@pytest.mark.parametrize(
    ("kind", "neighbors", "length", "chunks", "more"),
    [
        ("retro", 1, 12, 3, {}),
        ("retro", 2, 12, 3, {"retro_attention_gate": 0.5}),
        ("retro", 3, 12, 3, {"retro_encoder_layers": 3, "retro_retrieved_chunks": 1}),
        ("retro", 2, 4, 1, {}),
        ("retro", 2, 11, 2, {}),  # a row that ends inside a chunk
        ("retro", 2, 12, 1, {}),  # neighbours of the first chunk alone
        ("retro-llama", 1, 12, 3, {}),
        ("retro-llama", 2, 9, 2, {"num_layers": 16, "max_positions": 40}),
    ],
)
def test_logits_and_every_gradient_are_those_of_the_reference(kind, neighbors, length, chunks, more):
    module = build(RETROS[kind].model_copy(update={"retro_num_neighbors": neighbors, **more}))
    model = module.config
    text, texts, labels = batch_of(model, length, chunks)
    labels = labels[:, :length]
    weights = {name: each.detach().clone().requires_grad_() for name, each in module.named_parameters()}
    expected = Reference(model, weights).logits(text, texts)
    logits = logits_of(module, text, texts)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    for each in (logits, expected):
        module.loss(each, labels).backward()
    for name, each in module.named_parameters():
        if weights[name].grad is None:  # nobody looks
            assert each.grad is None, name
        else:
            torch.testing.assert_close(each.grad, weights[name].grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", RETROS)
def test_a_token_never_sees_the_neighbours_of_a_chunk_that_has_not_ended(kind):
    """Of every chunk: tokens before its last never change, its last does, and so does every one behind it."""
    module = build(RETROS[kind])
    model, m = module.config, module.config.retro_chunk_length
    text, neighbors, _ = batch_of(model, 16 if kind == "retro-llama" else 12, 3)
    with torch.no_grad():
        before = logits_of(module, text, neighbors)
        for chunk in range(3):
            for neighbor in range(model.retro_num_neighbors):
                changed = neighbors.clone()
                changed[:, chunk, neighbor] = (changed[:, chunk, neighbor] + 1) % model.vocab_size
                after = logits_of(module, text, changed)
                last = (chunk + 1) * m - 1
                assert torch.equal(after[:, :last], before[:, :last])
                assert ((after - before)[:, last:].abs().amax(dim=-1) > 1e-6).all()


@pytest.mark.parametrize("kind", RETROS)
def test_a_token_never_sees_a_later_one_through_the_encoder(kind):
    """The neighbours of a chunk are read with the whole chunk, so its last token is the first that may see them."""
    module = build(RETROS[kind])
    text, neighbors, _ = batch_of(module.config, 12, 3)
    with torch.no_grad():
        before = logits_of(module, text, neighbors)
        for token in range(12):
            changed = text.clone()
            changed[:, token] = (changed[:, token] + 1) % module.config.vocab_size
            after = logits_of(module, changed, neighbors)
            assert torch.equal(after[:, :token], before[:, :token])
            assert ((after - before)[:, token:].abs().amax(dim=-1) > 1e-9).all()


def test_without_a_look_the_model_is_the_gpt_it_has_inside():
    """The gate is shut, no neighbours are given, or no chunk has ended; the weights of the encoder take no part."""
    model = RETROS["retro"]
    module = build(model)
    gpt = build(model.model_copy(update={"family": "gpt"}))
    with torch.no_grad():
        for name, each in gpt.named_parameters():
            each.copy_(dict(module.named_parameters())[name])
        text, neighbors, _ = batch_of(model, 12, 3)
        expected = gpt(text)
        torch.testing.assert_close(module(text), expected, rtol=0, atol=0)
        torch.testing.assert_close(logits_of(module, text[:, :3], neighbors[:, :1]), expected[:, :3])
        shut = build(model.model_copy(update={"retro_attention_gate": 0.0}))
        torch.testing.assert_close(logits_of(shut, text, neighbors), expected, rtol=0, atol=0)
        assert (logits_of(module, text, neighbors) - expected).abs().max() > 1e-3


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach().clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def _cut_matches_whole(kind: str, tensor: int, seq: int, scatter: bool, recompute: Recompute) -> None:
    """Loss to 1e-12 and every gradient to 1e-10 of its largest element."""
    length = 16
    model, groups = RETROS[kind].model_copy(update={"seq_length": length, "max_positions": length}), None
    groups = groups_of(tensor=tensor, seq=seq)
    text, neighbors, labels = batch_of(model, length, 4)
    whole = build(model)
    expected = whole.loss(logits_of(whole, text, neighbors), labels)
    expected.backward()
    module = build(model, groups, scatter_norms=scatter, recompute=recompute)
    mine = [each.chunk(seq, dim=1)[groups.seq_rank] for each in (text, neighbors, labels)]
    weight = 1 / (labels >= 0).sum().double()
    documents = Documents(encoder_tokens=length // seq)
    tokens = torch.cat([mine[0], mine[1].flatten(1)], dim=1)
    loss = module(tokens, mine[2], weight, documents)
    loss.backward()
    torch.testing.assert_close(_sum(loss, groups.seq), expected.detach(), rtol=1e-12, atol=0)
    ours = dict(module.named_parameters())
    assert ours.keys() == dict(whole.named_parameters()).keys()
    for name, each in whole.named_parameters():
        wanted = take_shard(each.grad, ours[name].shard, groups.tensor_rank, tensor)
        scale = each.grad.abs().max()
        assert scale > 0, name
        assert (_sum(ours[name].grad, groups.seq) - wanted).abs().max() <= 1e-10 * scale, name


AGAIN = Recompute("full", num_layers=2)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "tensor", "seq", "scatter", "recompute"),
    [
        ("retro", 1, 1, False, AGAIN),
        ("retro-llama", 1, 1, False, Recompute("full", num_layers=4)),
        ("retro", 1, 1, False, Recompute("selective")),
        ("retro", 2, 1, False, Recompute()),
        ("retro-llama", 2, 1, True, AGAIN),
        ("retro", 2, 1, True, Recompute("selective")),
        ("retro", 1, 2, False, AGAIN),
        ("retro", 1, 4, False, Recompute()),
        ("retro-llama", 1, 2, False, Recompute("selective")),
        ("retro", 2, 2, True, Recompute()),
    ],
)
def test_a_cut_model_is_the_whole_one(kind, tensor, seq, scatter, recompute):
    run_ranks(tensor * seq, _cut_matches_whole, kind, tensor, seq, scatter, recompute)


def test_dropout_follows_its_draws_and_has_rates_of_its_own_in_the_encoder():
    off = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    none = {"retro_encoder_hidden_dropout": 0.0, "retro_encoder_attention_dropout": 0.0}
    text, neighbors, labels = batch_of(RETROS["retro"], 12, 3)
    tokens, documents = torch.cat([text, neighbors.flatten(1)], dim=1), Documents(encoder_tokens=12)

    def losses(**rates: float) -> list[float]:
        module = build(RETROS["retro"].model_copy(update=off | none | rates)).train()
        draws = [Draws(1, i, 0, 0, torch.device("cpu")) for i in (0, 1, 0)]
        return [module(tokens, labels, None, documents, each).item() for each in draws]

    assert len(set(losses())) == 1
    for name in (*off, *none):
        first, second, again = losses(**{name: 0.2})
        assert first == again != second, name


@pytest.mark.parametrize("granularity", ["full", "selective"])
def test_a_model_that_is_computed_again_draws_the_same(granularity):
    model = RETROS["retro"].model_copy(update={"hidden_dropout": 0.2, "attention_dropout": 0.2})
    text, neighbors, labels = batch_of(model, 12, 3)
    tokens, documents = torch.cat([text, neighbors.flatten(1)], dim=1), Documents(encoder_tokens=12)
    found = []
    for recompute in (Recompute(), Recompute(granularity)):
        module = build(model, recompute=recompute).train()
        module(tokens, labels, None, documents, Draws(1, 3, 0, 0, torch.device("cpu"))).backward()
        found.append({name: each.grad for name, each in module.named_parameters()})
    for name, each in found[0].items():
        torch.testing.assert_close(found[1][name], each, rtol=0, atol=0)


def test_with_neighbours_that_hold_the_answer_the_loss_falls_below_what_a_decoder_can_reach():
    """Random tokens, which nobody can foretell: log V. The neighbour of a chunk is the chunk with what follows it."""
    vocab, chunk, chunks = 16, 4, 4
    length = chunk * chunks
    sizes = {"vocab_size": vocab, "seq_length": length, "max_positions": length, "num_layers": 6, "init_std": 0.05}
    wide = {"hidden_size": 64, "head_dim": 8, "retro_num_neighbors": 1, "retro_encoder_layers": 1}
    module = build(RETROS["retro"].model_copy(update=sizes | wide)).float()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3, betas=(0.9, 0.98))
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(85):
        text = torch.randint(vocab, (32, length + chunk), generator=generator)
        answers = torch.stack([text[:, at : at + 2 * chunk] for at in range(0, length, chunk)], dim=1)
        tokens = torch.cat([text[:, :length], answers.flatten(1)], dim=1)
        loss = module(tokens, text[:, 1 : length + 1], None, Documents(encoder_tokens=length))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert min(losses[:5]) > 0.95 * math.log(vocab)
    assert max(losses[-5:]) < 0.85 * math.log(vocab)
