"""The decoder: split equals whole, and what it promises about types, dropout and errors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.comm.rng import Draws, draws_of
from megads.config.schema import ModelConfig
from megads.errors import ConfigError
from megads.models.build import build_model
from megads.models.gpt import GPT
from megads.parallel.tensor import take_shard
from tests.models import shapes
from tests.models.shapes import KINDS, make_run
from tests.ranks import groups_of, run_ranks

ONE = Groups(Grid(), 0)


def _batch(model: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, model.vocab_size, (3, model.seq_length + 1), generator=generator)
    tokens[0, :2] = torch.tensor([0, model.vocab_size - 1])
    return tokens[:, :-1], tokens[:, 1:]


def _split_model_matches_one_rank(kind: str) -> None:
    """Loss and every gradient to 1e-10 of the gradient's largest element, in float64."""
    model, rank, size = {**KINDS, **shapes.FAMILIES}[kind], dist.get_rank(), dist.get_world_size()
    tokens, labels = _batch(model)
    whole = build_model(make_run(model), ONE).double()
    split = build_model(make_run(model), groups_of(tensor=size)).double()
    expected, loss = whole(tokens, labels), split(tokens, labels)
    expected.backward()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    parameters = dict(split.named_parameters())
    assert list(parameters) == [name for name, _ in whole.named_parameters()]
    for name, full in whole.named_parameters():
        mine = take_shard(full.grad, parameters[name].shard, rank, size)
        scale = full.grad.abs().max()
        assert scale > 0, name
        assert (parameters[name].grad - mine).abs().max() <= 1e-10 * scale, name
    logits = whole(tokens)
    width = logits.shape[-1] // size
    torch.testing.assert_close(split(tokens), logits.narrow(-1, rank * width, width), rtol=1e-10, atol=1e-10)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "degree"), [*itertools.product(KINDS, [1, 2, 4]), ("qwen3", 2), ("qwen3", 4), ("olmo2", 2), ("olmo2", 4)]
)
def test_split_model_matches_one_rank(kind, degree):
    run_ranks(degree, _split_model_matches_one_rank, kind)


def test_loss_is_the_mean_cross_entropy_of_the_real_columns():
    module = build_model(make_run(shapes.LLAMA), ONE)
    tokens, labels = _batch(shapes.LLAMA)
    logits = module(tokens)
    assert logits.shape == (3, 12, 56)
    expected = -logits[..., :53].log_softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).mean()
    torch.testing.assert_close(module(tokens, labels), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_is_not_seen(kind):
    module = build_model(make_run(KINDS[kind]), ONE)
    tokens, _ = _batch(KINDS[kind])
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % KINDS[kind].vocab_size
    before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7] - after[:, 7]).abs().max() > 1e-3


def test_rotary_tables_stay_exact_when_the_model_is_cast():
    module = build_model(make_run(shapes.LLAMA), ONE)
    rotary = module.layers["0"].attention.rotary
    before = [table.clone() for table in rotary.tables(torch.device("cpu"), torch.float32, 12)]
    module.bfloat16()
    tokens, labels = _batch(shapes.LLAMA)
    assert module(tokens, labels).dtype == torch.float32
    assert module(tokens).dtype == torch.bfloat16
    module.float()
    after = rotary.tables(torch.device("cpu"), torch.float32, 12)
    torch.testing.assert_close(list(after), before, rtol=0, atol=0)
    assert not list(module.buffers())


def test_half_precision_stays_near_single():
    tokens, labels = _batch(shapes.LLAMA_GQA)
    module = build_model(make_run(shapes.LLAMA_GQA), ONE)
    expected = module(tokens, labels)
    torch.testing.assert_close(module.bfloat16()(tokens, labels), expected, rtol=0.05, atol=0)


def test_dropout_acts_in_training_only():
    model = shapes.GPT.model_copy(update={"hidden_dropout": 0.3, "attention_dropout": 0.3})
    module = build_model(make_run(model), ONE)
    tokens, labels = _batch(model)
    losses = [module(tokens, labels, draws=Draws(1, i, 0, 0, torch.device("cpu"))).item() for i in (0, 1, 2, 1)]
    assert len(set(losses)) == 3
    assert losses[1] == losses[3]
    assert len({module(tokens, labels).item() for _ in range(3)}) == 3
    module.eval()
    plain = build_model(make_run(shapes.GPT), ONE)
    torch.testing.assert_close(module(tokens, labels), plain(tokens, labels))


def _dropout_streams() -> None:
    """Hidden dropout agrees on every tensor rank; attention dropout differs."""
    groups = groups_of(tensor=2)
    draws = draws_of(1, 0, groups, torch.device("cpu"))
    for name in ("hidden_dropout", "attention_dropout"):
        model = shapes.GPT.model_copy(update={name: 0.5})
        module = build_model(make_run(model), groups)
        mine = module.layers["0"](torch.ones(2, 12, 32), None, draws)
        theirs = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(theirs, mine.detach())
        # The residual stream is the same on both either way: it is summed over the ranks.
        torch.testing.assert_close(theirs[0], theirs[1], rtol=0, atol=0)
    ones = torch.ones(2, 12, 2, 8)
    mine = module.layers["0"].attention._attend(None, draws, ones, ones, ones)
    theirs = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(theirs, mine.contiguous())
    assert not torch.equal(*theirs)


@pytest.mark.dist
def test_dropout_draws_from_the_right_stream():
    run_ranks(2, _dropout_streams)


def test_the_steps_in_order_are_the_model():
    module = build_model(make_run(shapes.GPT), ONE)
    tokens, labels = _batch(shapes.GPT)
    x = tokens
    steps = module.steps()
    assert len(steps) == shapes.GPT.num_layers + 2
    for step in steps:
        x = step(x)
    torch.testing.assert_close(module.loss(x, labels), module(tokens, labels))


def test_parameter_names():
    names = [name for name, _ in GPT(shapes.LLAMA, ONE).named_parameters()]
    block = [
        "input_norm.weight",
        "attention.qkv.weight",
        "attention.out.weight",
        "post_norm.weight",
        "mlp.gate_up.weight",
        "mlp.down.weight",
    ]
    blocks = [f"layers.{index}.{name}" for index in range(2) for name in block]
    assert names == ["embedding.weight", *blocks, "final_norm.weight", "head.weight"]
    names = [name for name, _ in GPT(shapes.GPT, ONE).named_parameters()]
    assert "positions.weight" in names
    assert "layers.1.mlp.up.bias" in names
    assert "head.weight" not in names


def test_a_sequence_longer_than_the_position_table_is_refused():
    module = build_model(make_run(shapes.GPT), ONE)
    with pytest.raises(ConfigError, match="a sequence of 13 tokens does not fit MAX_POSITIONS=12"):
        module(torch.zeros(1, 13, dtype=torch.int64))
