"""T5 against transformers', and against a reference of Megatron's form; float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megads.checkpoint.convert.huggingface.config import config_of
from megads.checkpoint.convert.huggingface.names import tensors_of
from megads.comm.groups import Groups
from megads.comm.rng import Draws
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.families.spec import by_name
from megads.models.gpt import GPT
from megads.parallel.documents import Documents, Lengths
from megads.parallel.recompute import Recompute, reentrant_checkpoint
from megads.parallel.tensor import take_shard
from tests.models.noisy import ONE, build
from tests.models.shapes import T5S
from tests.models.t5_reference import logits_of
from tests.ranks import groups_of, run_ranks

ROWS, ENCODER, DECODER = 3, 16, 8
REAL = (16, 9, 1)
CLASS = "T5ForConditionalGeneration"


def batch_of(model: ModelConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens of the encoder and of the decoder, labels, and how many of the encoder's are real."""
    generator = torch.Generator().manual_seed(5)
    text, start, labels = (
        torch.randint(model.vocab_size, (ROWS, length), generator=generator) for length in (ENCODER, DECODER, DECODER)
    )
    lengths = torch.tensor(REAL)
    text[torch.arange(ENCODER) >= lengths[:, None]] = 0
    labels[1, 5:] = -1
    return text, start, labels, lengths


def transformers_of(module: GPT) -> torch.nn.Module:
    """Return transformers' model with the weights of ``module``."""
    from transformers import T5Config, T5ForConditionalGeneration

    described = config_of(module.config, CLASS, "fp32", {}, {})
    theirs = T5ForConditionalGeneration._from_config(T5Config.from_dict(described), attn_implementation="eager")
    theirs = theirs.double().eval()
    if not module.config.tied_embeddings:  # transformers 5 ties what no file says to be two
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    ours, weights = dict(module.named_parameters()), dict(theirs.named_parameters())
    with torch.no_grad():
        for each in tensors_of(module.config, CLASS):
            weights[each.name].copy_(ours[each.ours][each.first : each.first + each.rows])
    return theirs


@pytest.fixture
def wide_norms(monkeypatch):
    """Have transformers' norms, which take the mean of squares in float32, take it in the type of their input."""
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def forward(self: torch.nn.Module, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt() * self.weight

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


@pytest.mark.usefixtures("wide_norms")
@pytest.mark.parametrize("kind", ["t5-v1.1", "t5-v1.0"])
def test_logits_loss_and_gradients_are_those_of_transformers(kind):
    """Rows of unequal length: padding of the encoder is seen by nobody."""
    module = build(T5S[kind])
    theirs = transformers_of(module)
    text, start, labels, lengths = batch_of(module.config)
    documents = Documents(lengths=Lengths(lengths, ENCODER))
    logits = module(torch.cat([text, start], dim=1), documents=documents)
    real = (torch.arange(ENCODER) < lengths[:, None]).long()
    expected = theirs(
        input_ids=text, attention_mask=real, decoder_input_ids=start, labels=labels.masked_fill(labels < 0, -100)
    )
    vocab = module.config.vocab_size
    torch.testing.assert_close(logits[..., :vocab], expected.logits, rtol=1e-10, atol=1e-10)
    loss = module.loss(logits, labels)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=1e-12)
    loss.backward()
    expected.loss.backward()
    ours, grads = dict(module.named_parameters()), {n: p.grad for n, p in theirs.named_parameters()}
    for each in tensors_of(module.config, CLASS):
        grad = ours[each.ours].grad[each.first : each.first + each.rows]
        torch.testing.assert_close(grad, grads[each.name], rtol=1e-9, atol=1e-11)


def test_megatrons_form_is_its_reference():
    """Logits and every gradient."""
    module = build(T5S["t5"])
    model = module.config
    text, start, labels, lengths = batch_of(model)
    weights = {name: each.detach().clone().requires_grad_() for name, each in module.named_parameters()}
    sizes = {"encoder": model.num_layers, "decoder": model.decoder_layers, "heads": model.num_heads}
    expected = logits_of(weights, text, start, lengths, **sizes)
    logits = module(torch.cat([text, start], dim=1), documents=Documents(lengths=Lengths(lengths, ENCODER)))
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    for each in (logits, expected):
        module.loss(each, labels).backward()
    for name, each in module.named_parameters():
        torch.testing.assert_close(each.grad, weights[name].grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", T5S)
def test_who_sees_whom(kind):
    """A token of the decoder: those before it, and every real one of the encoder."""
    module = build(T5S[kind])
    text, start, _, lengths = batch_of(module.config)
    documents = Documents(lengths=Lengths(lengths, ENCODER))

    def logits(text: Tensor, start: Tensor) -> Tensor:
        return module(torch.cat([text, start], dim=1), documents=documents)

    before, changed = logits(text, start), start.clone()
    changed[:, 5] += 1
    after = logits(text, changed)
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=0, atol=0)
    assert (after - before)[:, 5].abs().amin(dim=0).max() > 1e-3
    last, padding = text.clone(), text.clone()
    last[0, 15] += 1
    padding[1, 9:] += 1
    assert (logits(last, start) - before)[0].abs().amax(dim=-1).min() > 1e-4
    torch.testing.assert_close(logits(padding, start), before, rtol=0, atol=0)


def parts_of(text: Tensor, start: Tensor, labels: Tensor, lengths: Tensor, groups: Groups) -> tuple[Tensor, ...]:
    """Return this sequence rank's tokens and labels, and what its layers know."""
    mine = [each.chunk(groups.seq_size, dim=1)[groups.seq_rank] for each in (text, start, labels)]
    documents = Documents(lengths=Lengths(lengths, ENCODER), encoder_tokens=ENCODER // groups.seq_size)
    return torch.cat(mine[:2], dim=1), mine[2], documents


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.detach().clone()
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def _cut_matches_whole(kind: str, tensor: int, seq: int, scatter: bool, recompute: Recompute) -> None:
    """Loss to 1e-12 and every gradient to 1e-10 of its largest element; the rank's stages one behind the other."""
    model, groups = T5S[kind], groups_of(tensor=tensor, seq=seq)
    batch = batch_of(model)
    whole = build(model)
    expected = whole(*parts_of(*batch, ONE)[:2], None, parts_of(*batch, ONE)[2])
    expected.backward()
    layers = model.num_layers + model.decoder_layers
    # Cut inside the encoder, where the decoder begins, and inside it.
    cuts = sorted({0, min(2, model.num_layers), model.num_layers + 1, layers + 1, layers + 2})
    stages = [
        build(model, groups, steps=range(*pair), scatter_norms=scatter, recompute=recompute) for pair in pairwise(cuts)
    ]
    tokens, labels, documents = parts_of(*batch, groups)
    x = tokens
    for stage in stages:
        if not stage.has_embedding:
            assert x.shape == stage.boundary(*tokens.shape)
        x = stage(x, documents=documents)
    loss = stages[-1].loss(x, labels, 1 / (batch[2] >= 0).sum().double())
    loss.backward()
    torch.testing.assert_close(_sum(loss, groups.seq), expected.detach(), rtol=1e-12, atol=0)
    found: dict[str, Tensor] = {}
    for stage in stages:
        for name, each in stage.named_parameters():
            found[name] = found.get(name, 0) + _sum(each.grad, groups.seq)
    shards = {name: each.shard for stage in stages for name, each in stage.named_parameters()}
    for name, each in whole.named_parameters():
        mine = take_shard(each.grad, shards[name], groups.tensor_rank, tensor)
        scale = each.grad.abs().max()
        assert scale > 0, name
        assert (found[name] - mine).abs().max() <= 1e-10 * scale, name
    assert len(found) == len(dict(whole.named_parameters()))


PLAIN = Recompute()
AGAIN = Recompute("full", num_layers=2, checkpoint=reentrant_checkpoint)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "tensor", "seq", "scatter", "recompute"),
    [
        ("t5", 1, 1, False, AGAIN),
        ("t5-v1.1", 1, 1, False, Recompute("selective")),
        ("t5", 2, 1, False, PLAIN),
        ("t5-v1.1", 2, 1, True, AGAIN),
        ("t5-v1.0", 2, 1, True, PLAIN),
        ("t5", 1, 2, False, Recompute("selective")),
        ("t5-v1.1", 1, 2, False, PLAIN),
        ("t5", 2, 2, True, PLAIN),
        ("t5-v1.1", 2, 2, True, Recompute("selective")),
    ],
)
def test_a_cut_model_is_the_whole_one(kind, tensor, seq, scatter, recompute):
    run_ranks(tensor * seq, _cut_matches_whole, kind, tensor, seq, scatter, recompute)


def test_parts_that_cannot_be_scattered_are_refused():
    groups = Groups(ONE.grid.__class__(tensor=2), 0)
    module = build(T5S["t5"])
    module.context = module.context.__class__(groups, scatter_norms=True)
    with pytest.raises(ConfigError, match="use DECODER_SEQ=8, or SCATTER_NORMS=0"):
        module.embed(torch.zeros(1, ENCODER + 7, dtype=torch.int64))


def test_dropout_follows_its_draws():
    model = T5S["t5-v1.1"].model_copy(update={"hidden_dropout": 0.2, "attention_dropout": 0.2})
    module = build(model).train()
    text, start, labels, _ = batch_of(model)
    tokens = torch.cat([text, start], dim=1)
    losses = [module(tokens, labels, draws=Draws(1, i, 0, 0, torch.device("cpu"))).item() for i in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]
    torch.testing.assert_close(module.eval()(tokens, labels), build(T5S["t5-v1.1"])(tokens, labels))


def test_what_the_stacks_hold():
    spec = build(T5S["t5-v1.1"]).spec
    assert [each.num_layers for each in spec.stacks] == [2, 1, 2]
    last, decoder = (by_name(each.layer) for each in spec.stacks[1:])
    assert "encoder_norm.weight" in last
    assert decoder["cross_attention.kv.weight"].parts == (48, 48)
    assert by_name(spec.embedding)["encoder_bias.weight"].shape == (8, 8)
