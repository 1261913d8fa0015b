"""Recomputation: which layers, what is kept, and not a bit of difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.comm.rng import Draws, draws_of
from megads.models.build import build_model
from megads.parallel.recompute import Recompute, Step, reentrant_checkpoint, torch_checkpoint
from megads.parallel.ulysses import split_batch
from tests.models.shapes import GPT, KINDS, LLAMA, LLAMA_GQA, make_run
from tests.parity.recorder import Traffic
from tests.ranks import groups_of, run_ranks

CPU = torch.device("cpu")
PLANS = {
    "selective": Recompute("selective"),
    "uniform1": Recompute("full", "uniform", 1),
    "uniform2": Recompute("full", "uniform", 2),
    "block2": Recompute("full", "block", 2),
    "block9": Recompute("full", "block", 9),
}
CHECKPOINTS = {"torch": torch_checkpoint, "reentrant": reentrant_checkpoint}


class Counted:
    """A layer that counts how often it runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(x * 1.5).exp()


def runs_of(steps: list[Step], blocks: list[Counted]) -> list[int]:
    """Return how often each block ran in a forward and backward pass through ``steps``."""
    x = torch.randn(3, requires_grad=True)
    for step in steps:
        x = step(x)
    x.sum().backward()
    return [block.calls for block in blocks]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize(
    ("plan", "steps", "runs"),
    [
        (Recompute(), 8, [1] * 8),
        (Recompute("selective"), 8, [1] * 8),
        (Recompute("full", "block", 5), 8, [2] * 5 + [1] * 3),
        (Recompute("full", "block", 12), 8, [2] * 8),
        (Recompute("full", "uniform", 1), 8, [2] * 8),
        (Recompute("full", "uniform", 3), 3, [2] * 8),
        (Recompute("full", "uniform", 100), 1, [2] * 8),
    ],
    ids=["none", "selective", "block5", "block12", "uniform1", "uniform3", "uniform100"],
)
def test_the_layers_that_are_asked_for_run_twice(plan, steps, runs, checkpoint):
    blocks = [Counted() for _ in range(8)]
    made = replace(plan, checkpoint=checkpoint).layers(blocks)
    assert len(made) == steps
    assert runs_of(made, blocks) == runs
    if plan.granularity == "full":
        assert plan.segments(8) == (steps if plan.method == "uniform" else runs.count(2))


def test_a_stage_without_layers_has_nothing_to_recompute():
    for plan in PLANS.values():
        assert plan.layers([]) == []
        assert plan.segments(0) == 0


def test_only_the_core_is_recomputed_when_selective():
    attend = Counted()
    x = torch.randn(3, requires_grad=True)
    Recompute("selective").core(attend, x).sum().backward()
    assert attend.calls == 2
    attend = Counted()
    Recompute("full").core(attend, x).sum().backward()
    assert attend.calls == 1


def test_nothing_is_wrapped_without_gradients():
    def never(*args: object) -> Tensor:
        raise AssertionError("an evaluation keeps nothing that could be recomputed")

    x = torch.randn(3)
    blocks = [Counted(), Counted()]
    with torch.no_grad():
        for step in Recompute("full", checkpoint=never).layers(blocks):
            step(x)
        Recompute("selective", checkpoint=never).core(blocks[0], x)
    assert [block.calls for block in blocks] == [2, 1]


# What is kept


def kept_bytes(plan: Recompute, **changes: float) -> int:
    """Return the bytes that autograd keeps from one pass through 8 layers, parameters not counted."""
    model = LLAMA.model_copy(update={"num_layers": 8, **changes})
    module = build_model(make_run(model), Groups(Grid(), 0), plan)
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(2, model.seq_length, model.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for step in plan.layers(list(module.layers.values())):
            x = step(x)
    assert x.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(("layers", "groups"), [(1, 8), (2, 4), (3, 3), (8, 1)])
def test_full_uniform_keeps_one_input_per_group(layers, groups):
    # Reentrant, because that form keeps its inputs where hooks see them in every torch.
    plan = Recompute("full", "uniform", layers, checkpoint=reentrant_checkpoint)
    activation = 4 * 2 * LLAMA.seq_length * LLAMA.hidden_size
    assert kept_bytes(plan) == groups * activation


def test_full_block_keeps_the_other_layers_whole():
    activation = 4 * 2 * LLAMA.seq_length * LLAMA.hidden_size
    whole = kept_bytes(Recompute())
    layer = whole // 8
    plan = Recompute("full", "block", 5, checkpoint=reentrant_checkpoint)
    # Five inputs instead of five layers; the sixth layer's input belongs to it in both.
    assert kept_bytes(plan) == pytest.approx(5 * activation + 3 * layer, abs=activation)
    assert kept_bytes(plan) < whole / 2


def test_selective_drops_the_square_of_attention():
    short, long = ({"attention_dropout": 0.1, "seq_length": length} for length in (64, 128))
    whole, selective = kept_bytes(Recompute(), **short), kept_bytes(Recompute("selective"), **short)
    squares = 8 * 2 * LLAMA.num_heads * 64 * 64 * 4
    assert whole - selective >= 2 * squares  # the softmax and what dropout makes of it, at least
    assert kept_bytes(Recompute("selective"), **long) == 2 * selective
    assert kept_bytes(Recompute(), **long) > 3 * whole
    assert kept_bytes(Recompute("full", checkpoint=reentrant_checkpoint), **short) < selective / 10


# The same bits


def gradients(model, groups, plan, scatter_norms=False):
    """Return losses and gradients after two steps of two micro-batches."""
    run = make_run(model)
    run = run.model_copy(update={"parallel": run.parallel.model_copy(update={"scatter_norms": scatter_norms})})
    module = build_model(run, groups, plan).train()
    generator = torch.Generator().manual_seed(11)
    losses = []
    for _ in range(2):
        for _ in range(2):
            tokens = torch.randint(0, model.vocab_size, (2, model.seq_length + 1), generator=generator)
            draws = draws_of(3, 2 * len(losses), groups, CPU)
            loss = module(*split_batch(tokens, groups), draws=draws)
            loss.backward()
            losses.append(loss.detach())
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
    return losses, {name: p.grad for name, p in module.named_parameters()}


def assert_same_bits(model, groups, plans, scatter_norms=False):
    expected = gradients(model, groups, Recompute(), scatter_norms)
    for plan in plans:
        losses, grads = gradients(model, groups, plan, scatter_norms)
        assert all(map(torch.equal, losses, expected[0]))
        for name, grad in expected[1].items():
            assert torch.equal(grads[name], grad), f"{name} with {plan}"


def deep(model, hidden=0.2, attention=0.2):
    return model.model_copy(update={"num_layers": 3, "hidden_dropout": hidden, "attention_dropout": attention})


@pytest.mark.parametrize("checkpoint", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_the_same(kind, plan, checkpoint):
    model = deep(KINDS[kind])
    assert_same_bits(model, Groups(Grid(), 0), [replace(plan, checkpoint=checkpoint)])


class Forgetful(Draws):
    """Draws whose generator continues where it is instead of being seeded."""

    def begin(self, place: str, *, is_split: bool) -> None:
        pass


def first_gradient(model, draws):
    """Return the gradient of the first q, k, v matrix after one micro-batch with selective recomputation."""
    torch.manual_seed(4)
    module = build_model(make_run(model), Groups(Grid(), 0), Recompute("selective")).train()
    tokens = torch.randint(0, model.vocab_size, (2, model.seq_length + 1))
    module(tokens[:, :-1], tokens[:, 1:], draws=draws(5, 0, 0, 0, CPU)).backward()
    return module.layers["0"].attention.qkv.weight.grad


def test_a_draw_that_is_not_seeded_shows_in_the_gradients():
    dropped, dry = deep(LLAMA), deep(LLAMA, hidden=0.0, attention=0.0)
    assert not torch.equal(first_gradient(dropped, Forgetful), first_gradient(dropped, Draws))
    assert torch.equal(first_gradient(dry, Forgetful), first_gradient(dry, Draws))


def _same_on_ranks(grid: dict[str, int], kind: str, scatter_norms: bool) -> None:
    plans = [
        PLANS["selective"],
        PLANS["block2"],
        *(replace(PLANS["uniform2"], checkpoint=c) for c in CHECKPOINTS.values()),
    ]
    assert_same_bits(deep(KINDS[kind]), groups_of(**grid), plans, scatter_norms)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["gpt", "llama-gqa"])
@pytest.mark.parametrize(
    ("grid", "scatter_norms"),
    [({"tensor": 2}, False), ({"tensor": 2}, True), ({"seq": 2}, False)],
    ids=["tp2", "tp2-scattered", "sp2"],
)
def test_split_regions_draw_the_same_again(grid, kind, scatter_norms):
    run_ranks(2, _same_on_ranks, grid, kind, scatter_norms)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("scatter_norms", [False, True], ids=["whole", "scattered"])
def test_split_regions_draw_the_same_again_on_four_ranks(scatter_norms):
    run_ranks(4, _same_on_ranks, {"seq": 2, "tensor": 2}, "gpt", scatter_norms)


# What is sent


def traffic_of(grid: dict[str, int], scatter_norms: bool, plan: Recompute):
    """Return what the layers send in the forward pass, and in both passes."""
    groups = groups_of(**grid)
    run = make_run(LLAMA_GQA if grid.get("seq", 1) == 1 else GPT)
    run = run.model_copy(update={"parallel": run.parallel.model_copy(update={"scatter_norms": scatter_norms})})
    module = build_model(run, groups, plan)
    x = torch.randn(2, run.model.seq_length // 2, run.model.hidden_size, requires_grad=True)
    with Traffic(groups) as traffic:
        for step in plan.layers(list(module.layers.values())):
            x = step(x)
        forward = traffic.rows
        x.sum().backward()
    return forward, traffic.rows


def _sends_no_more_than_expected(grid: dict[str, int], scatter_norms: bool) -> None:
    forward, both = traffic_of(grid, scatter_norms, Recompute())
    assert forward
    for checkpoint in CHECKPOINTS.values():
        plan = Recompute("selective", checkpoint=checkpoint)
        assert traffic_of(grid, scatter_norms, plan) == (forward, both)
        for layers in (1, 2):
            plan = Recompute("full", "uniform", layers, checkpoint=checkpoint)
            again, total = traffic_of(grid, scatter_norms, plan)
            assert again == forward
            # The forward pass's messages once more, and nothing else.
            expected = dict(both)
            for key, (calls, size) in forward.items():
                expected[key] = (both[key][0] + calls, both[key][1] + size)
            assert total == expected


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "scatter_norms"),
    [({"tensor": 2}, False), ({"tensor": 2}, True), ({"seq": 2}, False)],
    ids=["tp2", "tp2-scattered", "sp2"],
)
def test_selective_sends_nothing_more_and_full_the_forward_pass_again(grid, scatter_norms):
    run_ranks(2, _sends_no_more_than_expected, grid, scatter_norms)
