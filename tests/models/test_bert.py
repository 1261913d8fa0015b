"""BERT: transformers' logits and gradients, Megatron's form from its definition, and split equals whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import Stamp
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.masked.masking import WordPieces
from megads.data.samples.masked.rows import BertRow, bert_row
from megads.data.samples.masked.samples import BertSamples
from megads.data.samples.masked.sentence_map import SentenceRecipe
from megads.models.bert import BERT, PairLabels
from megads.models.build import build_model
from megads.parallel.documents import Documents, Lengths
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import full_shape, take_shard
from tests.data.samples.sentences import write_sentences
from tests.models import shapes
from tests.models.noisy import ONE, build
from tests.parity.layouts import VOCAB, Layout
from tests.ranks import groups_of, run_ranks

LENGTHS = (16, 11, 4)
STEPS = 80
SHAPE = {"seq_length": 16, "max_positions": 20, "vocab_size": 56}


def shape_of(kind: str) -> ModelConfig:
    return shapes.BERTS[kind].model_copy(update=SHAPE)


def batch() -> tuple[Tensor, Documents, PairLabels]:
    """Return rows of three lengths: text, what goes with it, and what is to be said about it."""
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(1, 56, (3, 16), generator=generator)
    lengths = Lengths(torch.tensor(LENGTHS), 16)
    real = lengths.mask[:, 0, 0]
    text = text.masked_fill(~real, 0)
    types = (torch.arange(16) >= lengths.tokens.unsqueeze(1) // 2).long() * real
    hidden = (torch.rand(3, 16, generator=generator) < 0.3) & real
    hidden[:, 1] = True
    labels = torch.randint(0, 56, (3, 16), generator=generator).masked_fill(~hidden, -1)
    return text, Documents(lengths=lengths, types=types), PairLabels(labels, torch.tensor([0, 1, 1]))


def target(model: ModelConfig, labels: PairLabels) -> Any:
    return labels if model.binary_head else labels.tokens


# transformers


def _theirs(model: ModelConfig) -> nn.Module:
    is_original = model.norm_position == "behind_sum"
    config = (transformers.BertConfig if is_original else transformers.MegatronBertConfig)(
        vocab_size=56,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.ffn_hidden_size,
        hidden_act={"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=20,
        type_vocab_size=2,
        layer_norm_eps=model.norm_epsilon,
        initializer_range=0.3,
    )
    name = "Bert" if is_original else "MegatronBert"
    return getattr(transformers, f"{name}{'ForPreTraining' if model.binary_head else 'ForMaskedLM'}")(config)


OUTSIDE = {
    "embedding": "bert.embeddings.word_embeddings",
    "positions": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "final_norm": "bert.encoder.ln",
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.norm": "cls.predictions.transform.LayerNorm",
    "lm_head": "cls.predictions",
    "pooler.dense": "bert.pooler.dense",
    "binary_head": "cls.seq_relationship",
}
INSIDE = {
    "attention.out": "attention.output.dense",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_norm": "output.LayerNorm",
    "input_norm": "attention.ln",
    "post_norm": "ln",
}


def _renamed(theirs: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Return our tensors ``names``, weights or gradients, of theirs."""
    found = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        if not module.startswith("layers."):
            found[name] = theirs[f"{OUTSIDE[module]}.{kind}"]
            continue
        _, index, inner = module.split(".", 2)
        layer = f"bert.encoder.layer.{index}"
        if inner == "attention.qkv":
            found[name] = torch.cat([theirs[f"{layer}.attention.self.{x}.{kind}"] for x in ("query", "key", "value")])
        else:
            found[name] = theirs[f"{layer}.{INSIDE[inner]}.{kind}"]
    return found


def _assert_near(ours: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12)
    assert error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bert", {}),
        ("bert", {"binary_head": False}),
        ("bert-original", {}),
        ("bert-original", {"binary_head": False}),
        ("bert-original", {"activation": "gelu_tanh"}),
    ],
    ids=["megatron", "megatron-tokens", "original", "original-tokens", "original-tanh"],
)
def test_outputs_losses_and_gradients_equal_transformers(kind, changes, dtype, tolerance):
    model = shape_of(kind).model_copy(update=changes)
    theirs = _theirs(model).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    ours = BERT(model, ONE).to(dtype)
    names = [name for name, _ in ours.named_parameters()]
    ours.load_state_dict(_renamed(theirs.state_dict(), names))
    text, documents, labels = batch()
    if dtype == torch.float32:  # of both labels the gradient of a bias is a small difference
        labels = PairLabels(labels.tokens, torch.ones(3, dtype=torch.int64))
    real = documents.lengths.mask[:, 0, 0]
    expected = theirs(text, attention_mask=real.long(), token_type_ids=documents.types)
    outputs = ours(text, documents=documents)
    logits, pairs = outputs if model.binary_head else (outputs, None)
    scores = expected.prediction_logits if model.binary_head else expected.logits
    _assert_near(logits[real], scores[real], tolerance, "logits")
    loss = F.cross_entropy(scores.flatten(0, 1), labels.tokens.flatten(), ignore_index=-1)
    if model.binary_head:
        _assert_near(pairs, expected.seq_relationship_logits, tolerance, "pairs")
        loss = loss + F.cross_entropy(expected.seq_relationship_logits, labels.pairs)
    loss.backward()
    found = ours(text, target(model, labels), documents=documents)
    found.backward()
    _assert_near(found, loss, tolerance, "loss")
    gradients = _renamed({name: weight.grad for name, weight in theirs.named_parameters()}, names)
    for name, weight in ours.named_parameters():
        _assert_near(weight.grad, gradients[name], tolerance, name)


# Megatron's form by its definition


def by_definition(model: ModelConfig, w: dict[str, Tensor], text: Tensor, documents: Documents) -> tuple[Tensor, Any]:
    """Return logits and pair logits, token by token where it can be: an S x S mask, heads one by one."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (var + model.norm_epsilon).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    real = documents.lengths.mask[:, 0, 0]
    sees = real[:, :, None] & real[:, None, :]  # Megatron's, S x S
    x = w["embedding.weight"][text] + w["positions.weight"][:16] + w["token_types.weight"][documents.types]
    for n in range(model.num_layers):
        layer = f"layers.{n}"
        qkv = dense(norm(x, f"{layer}.input_norm"), f"{layer}.attention.qkv")
        q, k, v = (part.unflatten(-1, (-1, model.head_dim)) for part in qkv.chunk(3, dim=-1))
        heads = []
        for head in range(model.num_heads):
            scores = q[:, :, head] @ k[:, :, head].transpose(1, 2) / math.sqrt(model.head_dim)
            heads.append(scores.masked_fill(~sees, -10000.0).softmax(-1) @ v[:, :, head])
        x = x + dense(torch.cat(heads, -1), f"{layer}.attention.out")
        inner = dense(norm(x, f"{layer}.post_norm"), f"{layer}.mlp.up")
        x = x + dense(
            inner * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3))), f"{layer}.mlp.down"
        )
    x = norm(x, "final_norm")
    head = dense(x, "lm_head.dense")
    head = norm(head * 0.5 * (1 + torch.erf(head / math.sqrt(2))), "lm_head.norm")
    pooled = torch.tanh(dense(x[:, 0], "pooler.dense"))
    return head @ w["embedding.weight"].t() + w["lm_head.bias"], dense(pooled, "binary_head")


def test_megatrons_form_by_its_definition():
    """Layers with the tanh form of gelu, which Megatron's fused kernel computes, and the head with the exact one."""
    model = shape_of("bert").model_copy(update={"activation": "gelu_tanh"})
    ours = build(model)
    text, documents, labels = batch()
    real = documents.lengths.mask[:, 0, 0]
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in ours.named_parameters()}
    logits, pairs = by_definition(model, weights, text, documents)
    found, found_pairs = ours(text, documents=documents)
    _assert_near(found[real], logits[real], 1e-10, "logits")
    _assert_near(found_pairs, pairs, 1e-10, "pairs")
    picked = labels.tokens >= 0
    per_token = -logits.log_softmax(-1).gather(-1, labels.tokens.clamp(min=0)[..., None])[..., 0]
    terms = per_token[picked].mean(), -pairs.log_softmax(-1)[torch.arange(3), labels.pairs].mean()
    sum(terms).backward()
    loss = ours(text, labels, documents=documents)
    loss.backward()
    torch.testing.assert_close(loss, sum(terms), rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.losses, torch.stack(terms), rtol=1e-12, atol=0)
    for name, weight in ours.named_parameters():
        _assert_near(weight.grad, weights[name].grad, 1e-10, name)


def test_losses_of_samples_are_those_of_the_loss():
    model = shape_of("bert")
    ours = build(model)
    text, documents, labels = batch()
    found = ours.sample_losses(ours(text, documents=documents), labels)
    loss = ours(text, labels, documents=documents)
    sums = found.sum(dim=0)
    assert found[:, 1].tolist() == (labels.tokens >= 0).sum(dim=1).tolist()
    assert found[:, 3].tolist() == [1, 1, 1]
    torch.testing.assert_close(torch.stack([sums[0] / sums[1], sums[2] / sums[3]]), ours.losses)
    torch.testing.assert_close(loss, ours.losses.sum())


# Layouts


def _cut_model_matches_one_rank(kind: str, tensor: int, seq: int, scatter: bool, recompute: Recompute) -> None:
    model, groups = shape_of(kind), groups_of(tensor=tensor, seq=seq)
    text, documents, labels = batch()
    whole, split = build(model), build(model, groups, scatter_norms=scatter, recompute=recompute)
    mine = slice(groups.seq_rank * 16 // seq, (groups.seq_rank + 1) * 16 // seq)
    weight = 1 / (labels.tokens >= 0).sum().double()
    expected = whole(text, target(model, labels), weight, documents=documents)
    expected.backward()
    pairs = labels.pairs if groups.seq_rank == 0 else torch.full_like(labels.pairs, -1)
    here = Documents(lengths=documents.lengths, types=documents.types[:, mine])
    # The engine averages over sequence ranks; here they are summed.
    loss = split(text[:, mine], target(model, PairLabels(labels.tokens[:, mine], pairs)), weight * seq, here) / seq
    loss.backward()
    assert [name for name, _ in split.named_parameters()] == [name for name, _ in whole.named_parameters()]
    found = _summed(loss, groups.seq)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)
    for name, full in whole.named_parameters():
        cut = dict(split.named_parameters())[name]
        wanted = take_shard(full.grad, cut.shard, groups.tensor_rank, tensor)
        scale = full.grad.abs().max()
        assert scale > 0, name
        assert (_summed(cut.grad, groups.seq) - wanted).abs().max() <= 1e-10 * scale, name
        assert full_shape(cut.shape, cut.shard) == full.shape


def _summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach().clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


NONE, FULL, SELECTIVE = Recompute(), Recompute("full", num_layers=1), Recompute("selective")


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "tensor", "seq", "scatter", "recompute"),
    [
        ("bert", 2, 1, False, NONE),
        ("bert", 2, 1, True, FULL),
        ("bert", 1, 2, False, SELECTIVE),
        ("bert", 2, 2, True, NONE),
        ("bert", 4, 1, True, NONE),
        ("bert-original", 2, 1, True, NONE),
        ("bert-original", 2, 2, True, SELECTIVE),
        ("bert-original", 1, 4, False, FULL),
        ("bert-tokens", 2, 2, True, NONE),
        ("bert-gqa", 2, 1, True, NONE),
    ],
)
def test_a_cut_model_matches_one_rank(kind, tensor, seq, scatter, recompute):
    run_ranks(tensor * seq, _cut_model_matches_one_rank, kind, tensor, seq, scatter, recompute)


@pytest.mark.parametrize("kind", shapes.BERTS)
def test_half_precision_stays_near_single(kind):
    model = shape_of(kind)
    text, documents, labels = batch()
    module = build(model).float()
    expected = module(text, target(model, labels), documents=documents)
    found = module.bfloat16()(text, target(model, labels), documents=documents)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


def test_dropout_is_a_function_of_its_draws():
    model = shape_of("bert").model_copy(update={"hidden_dropout": 0.3, "attention_dropout": 0.3})
    module = build(model).float()
    text, documents, labels = batch()
    draws = [Draws(1, first, 0, 0, torch.device("cpu")) for first in (0, 1, 2, 1)]
    losses = [module(text, labels, documents=documents, draws=each).item() for each in draws]
    assert len(set(losses)) == 3
    assert losses[1] == losses[3]


def test_a_model_without_types_of_tokens():
    model = shape_of("bert").model_copy(update={"token_types": 0})
    module = build(model)
    text, documents, labels = batch()
    without = Documents(lengths=documents.lengths)
    assert "token_types.weight" not in dict(module.named_parameters())
    assert torch.equal(module(text, labels, documents=documents), module(text, labels, documents=without))


def test_the_order_of_halves_is_learnt_where_it_shows(tmp_path):
    """Labels, types and head belong together: the first of a text's two sentences has other words than the second."""
    dice = np.random.RandomState(0)
    sentences = [dice.randint(20 + 40 * i, 60 + 40 * i, 5) for _ in range(60) for i in range(2)]
    prefix = write_sentences(tmp_path, [5] * 120, [*range(0, 121, 2)], np.concatenate(sentences))
    pieces = WordPieces(np.arange(VOCAB), np.zeros(VOCAB, bool), cls=1, sep=2, mask=3, pad=0)
    recipe = SentenceRecipe(prefix, Stamp.of(prefix), 0, 60, 13, 2, 16 * STEPS, 1234)
    samples = BertSamples(open_dataset(prefix), Cache(tmp_path).get(recipe), pieces, seed=1234, seq_length=16)
    run = Layout("bert").run(**{"model.num_layers": "1", "model.init_std": "0.1"})
    model, row, losses = build_model(run, Groups(Grid(), 0)), BertRow(16), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        rows = torch.from_numpy(np.stack([bert_row(samples[i]) for i in range(16 * step, 16 * step + 16)]))
        documents = Documents(lengths=Lengths(rows[:, row.length], 16), types=rows[:, row.types])
        loss = F.cross_entropy(model(rows[:, row.text], documents=documents)[1], rows[:, row.is_random])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert max(losses[-5:]) < 0.05 < 0.4 < losses[0]
