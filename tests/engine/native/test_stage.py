"""Schedules run for real: the gradients of one rank, in float64, and the order that was planned."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.pipeline.actions import actions
from megads.config.pipeline.clock import Costs, Wire, simulate
from megads.config.pipeline.idle import idle_share
from megads.config.stages import balanced_cuts
from megads.engine.micro_batches import MicroBatch, Splitter
from megads.engine.native.stage import Stage, steps_of
from megads.models.build import build_model
from megads.parallel.recompute import Recompute
from megads.parallel.tensor import take_shard
from megads.parallel.weight_gradients import keep_parameters, weight_gradients
from tests.parity.layouts import Layout, batches
from tests.ranks import groups_of, run_ranks

CPU = torch.device("cpu")
SCHEDULES = {"1f1b": 1, "interleaved": 2, "zb-h1": 1}


def chunks_of(run: Any, groups: Any, count: int, recompute: Recompute | None = None) -> list[Any]:
    """Return this stage's chunks in float64, ``count`` of them."""
    parts = groups.pipe_size * count
    last = run.model.num_layers + (run.model.decoder_layers or 0) + 1
    cuts = balanced_cuts((0, *[1] * (last - 1), 0), parts)
    steps = list(itertools.starmap(range, itertools.pairwise(cuts)))
    mine = [steps[chunk * groups.pipe_size + groups.pipe_rank] for chunk in range(count)]
    return [build_model(run, groups, recompute, steps=each).double().train() for each in mine]


@cache
def expected(kind: str, **more: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Return losses and gradients of one rank: micro-batch after micro-batch, by autograd alone."""
    run = Layout(kind).run(**more)
    alone = Groups(Grid(), 0)
    model = build_model(run, alone).double().train()
    split = Splitter(run, alone, 7)
    parts = split.with_dropout(split(batches(run, 0, 0)), 0)
    weight = split.token_weight(parts).double()
    losses = []
    for part in parts:
        loss = model(part.tokens, part.target, weight, documents=part.documents, draws=part.draws)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses), {name: each.grad for name, each in model.named_parameters()}


def equals_one_rank(
    layout: Layout, schedule: str, chunks: int, recompute: Recompute | None = None, **more: str
) -> None:
    run, groups = layout.run(**more), groups_of(**layout.degrees)
    modules = chunks_of(run, groups, chunks, recompute)
    stage = Stage(modules, groups, CPU, schedule)
    split = Splitter(run, groups, 7)
    parts = split.with_dropout(split(batches(run, 0, 0)), 0)
    weight, losses, watched = split.token_weight(parts).double(), [], []
    stage.watch = watched.append

    stage.train(parts, weight, None, losses.append)
    planned = steps_of(schedule, groups.pipe_size, chunks, len(parts), groups.pipe_rank, is_training=True)
    assert watched == list(planned)
    found_losses, gradients = expected(layout.kind, **layout.more)
    if stage.is_last:
        total = torch.stack(losses) / groups.seq_size
        if groups.seq is not None:
            dist.all_reduce(total, group=groups.seq)
        torch.testing.assert_close(total, found_losses, rtol=1e-10, atol=1e-12)
    seen = set()
    for module in modules:
        for name, each in module.named_parameters():
            assert each.grad is not None, name
            grad = each.grad.clone()
            if name == "embedding.weight" and run.model.tied_embeddings:
                dist.all_reduce(grad, group=groups.ends)
            if groups.seq is not None:
                grad /= groups.seq_size
                dist.all_reduce(grad, group=groups.seq)
            whole = take_shard(gradients[name], each.shard, groups.tensor_rank, groups.tensor_size)
            torch.testing.assert_close(
                grad, whole, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )
            seen.add(name)
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, seen)
    assert set().union(*names) == set(gradients)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["gpt-dropout", "llama", "t5-v1.0", "bert"])
def test_gradients_equal_those_of_one_rank(kind: str, schedule: str) -> None:
    run_ranks(2, equals_one_rank, Layout(kind, pp=2), schedule, SCHEDULES[schedule])


DOCUMENTS = {"data.eod_mask_loss": "true", "data.reset_attention_mask": "true", "data.reset_position_ids": "true"}
SIX_LAYERS = {"model.num_layers": "6"}
SINGLE = {"train.micro_batch": "1"}
THREE = {"train.global_batch": "6"}
LAYOUTS = {
    "eight-virtual-stages": (Layout("gpt", pp=4, more=SIX_LAYERS), "interleaved", 2),
    "more-micro-batches": (Layout("llama-tied", pp=4, more={**SIX_LAYERS, **SINGLE}), "interleaved", 2),
    "zero-bubble": (Layout("gpt", pp=4, more=SINGLE), "zb-h1", 1),
    "few-micro-batches": (Layout("gpt", pp=4, more=THREE), "zb-h1", 1),
    "three-chunks": (Layout("gpt", pp=2, more={**SIX_LAYERS, **THREE}), "interleaved", 3),
    "documents": (Layout("gpt", pp=2, more=DOCUMENTS), "zb-h1", 1),
    "tensor": (Layout("gpt", tp=2, pp=2), "zb-h1", 1),
    "scattered": (Layout("llama-tied", tp=2, pp=2, more={"parallel.scatter_norms": "true"}), "zb-h1", 1),
    "scattered-chunks": (Layout("gpt", tp=2, pp=2, more={"parallel.scatter_norms": "true"}), "interleaved", 2),
    "sequence": (Layout("llama", sp=2, pp=2), "interleaved", 2),
    "sequence-zero-bubble": (Layout("gqa", sp=2, pp=2), "zb-h1", 1),
    "encoder-decoder": (Layout("t5", tp=2, pp=2), "interleaved", 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_equal_one_rank(name: str) -> None:
    layout, schedule, chunks = LAYOUTS[name]
    run_ranks(layout.ranks, equals_one_rank, layout, schedule, chunks)


@pytest.mark.parametrize(
    "recompute", [Recompute("selective"), Recompute("full"), Recompute("full", "block")], ids=["core", "full", "block"]
)
@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1"])
def test_recomputed_equal_one_rank(recompute: Recompute, schedule: str) -> None:
    run_ranks(2, equals_one_rank, Layout("gpt", pp=2), schedule, SCHEDULES[schedule], recompute)


def sent_outputs_hold_no_memory() -> None:
    groups, run = groups_of(pipe=2), Layout("gpt", pp=2).run()
    stage = Stage(chunks_of(run, groups, 1), groups, CPU, "1f1b")
    split = Splitter(run, groups, 7)
    parts, held = split(batches(run, 0, 0)), []
    saved = stage.chunks[0].register_forward_hook(lambda _, inputs, output: held.append(output))

    def look(step: Any) -> None:
        if not stage.is_last and str(step).startswith("B"):
            assert {y.untyped_storage().nbytes() for y in held} == {8}
            assert held[0].shape == stage.chunks[0].boundary(*parts[0].tokens.shape)

    stage.watch = look
    stage.train(parts, split.token_weight(parts).double(), None, bool)
    saved.remove()
    assert len(held) == len(parts)


def test_sent_outputs_hold_no_memory() -> None:
    run_ranks(2, sent_outputs_hold_no_memory)


def evaluates_as_one_rank(kind: str, schedule: str) -> None:
    groups, run = groups_of(pipe=2), Layout(kind, pp=2).run()
    stage = Stage([each.eval() for each in chunks_of(run, groups, SCHEDULES[schedule])], groups, CPU, schedule)
    parts = Splitter(run, groups, 7)(batches(run, 0, 0))
    found = stage.evaluate(parts, lambda logits, _: logits)
    if not stage.is_last:
        assert found == [None] * len(parts)
        return
    whole = build_model(Layout(kind).run(), Groups(Grid(), 0)).double().eval()
    for at, logits in enumerate(found):
        with torch.no_grad():
            expected = whole(parts[at].tokens, documents=parts[at].documents)
        assert not logits.requires_grad
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation_equals_one_rank(schedule: str) -> None:
    for kind in ("gpt-dropout", "t5-dropout"):
        run_ranks(2, evaluates_as_one_rank, kind, schedule)


class _Tick(torch.autograd.Function):
    """A chunk's work on a simulated clock, whose time travels in the messages."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, clock: Clock, virtual: int) -> Tensor:
        keep_parameters(ctx, weight, None)
        ctx.clock, ctx.virtual = clock, virtual
        clock.work(float(x.max()), clock.costs.forward)
        return torch.full(Clock.SHAPE, clock.arrival(1, virtual, clock.now), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        clock = ctx.clock
        clock.work(float(grad.max()), clock.costs.backward)
        one = torch.ones(1, 1, dtype=torch.float64)
        weight, _ = weight_gradients(ctx, one, one)
        # Of a gradient that waits the hook of the weight counts the time, when it is there; of others too, but later
        # than the message that it delays.
        ends = clock.now + (0 if weight is None else clock.costs.weight)
        there = clock.arrival(-1, ctx.virtual, ends)
        return torch.full(Clock.SHAPE, there, dtype=torch.float64), weight, None, None


class Clock(nn.Module):
    """A stand-in for a chunk; the chunks of a stage have one clock."""

    SHAPE = (1, 2, 3)

    def __init__(self, virtual: int, stages: int, costs: Costs, first: Clock | None = None):
        super().__init__()
        self.virtual, self.stages = virtual, stages
        self.weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
        self.weight.register_post_accumulate_grad_hook(self._count_weight)
        self.owner = [first or self]
        self.costs, self.now, self.busy = costs, 0.0, 0.0
        self.links: dict[int, float] = {}

    def boundary(self, *_: int) -> tuple[int, ...]:
        return self.SHAPE

    def work(self, ready: float, cost: float) -> None:
        owner = self.owner[0]
        owner.now, owner.busy = max(owner.now, ready) + cost, owner.busy + cost

    def arrival(self, step: int, virtual: int, now: float) -> float:
        """Return when the result of a chunk is at the next virtual stage, or the one before it."""
        boundary, target = min(virtual, virtual + step), (virtual + step) % self.stages
        if self.stages == 1 or not 0 <= boundary < len(self.costs.wires):
            return now
        left = max(now, self.links.get(target, now)) + self.costs.wires[boundary].seconds
        self.links[target] = left
        return left + self.costs.wires[boundary].latency

    def _count_weight(self, weight: Tensor) -> None:
        if weight.grad is not None:
            weight.grad = None
            self.work(0.0, self.costs.weight)

    def forward(self, x: Tensor, target: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        x = x if x.is_floating_point() else torch.zeros(self.SHAPE, dtype=torch.float64, requires_grad=True)
        y = _Tick.apply(x, self.weight, self.owner[0], self.virtual)
        return y if target is None else y.sum() * 0


def waits_as_simulated(stages: int, schedule: str, micro_batches: int, costs: Costs) -> None:
    groups, chunks = groups_of(pipe=stages), SCHEDULES[schedule]
    modules = [Clock(groups.pipe_rank, stages, costs)]
    modules += [Clock(each * stages + groups.pipe_rank, stages, costs, modules[0]) for each in range(1, chunks)]
    stage = Stage(modules, groups, CPU, schedule)
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    parts = [MicroBatch(tokens, tokens, None)] * micro_batches
    stage.train(parts, torch.ones(()), None, bool)
    times = [None] * stages
    dist.all_gather_object(times, (modules[0].now, modules[0].busy))
    timeline = simulate(actions(schedule, stages, chunks, micro_batches), costs)
    length = max(now for now, _ in times)
    assert length == timeline.length
    for at, (now, busy) in enumerate(times):
        assert now == timeline.stages[at][-1].end
        assert 1 - busy / length == pytest.approx(float(timeline.idle_share(at)), abs=1e-12)
    if costs == Costs():
        expected = idle_share(schedule, stages, chunks, micro_batches)
        assert 1 - sum(busy for _, busy in times) / stages / length == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_wait_as_simulated(schedule: str) -> None:
    """The clock of a real run, whose time travels in its messages, shows the planned share of idle time."""
    run_ranks(4, waits_as_simulated, 4, schedule, 8, Costs())
    run_ranks(4, waits_as_simulated, 4, schedule, 6, Costs(forward=2, backward=3, weight=1))


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_messages_take_the_time_that_is_simulated(schedule: str, stages: int) -> None:
    """The same with slow messages, of which a link has one at a time; each boundary has times of its own."""
    boundaries = range(stages * SCHEDULES[schedule] - 1)
    wires = tuple(Wire(0.25 * (1 + at * 5 % 7), 0.5 * (at % 3)) for at in boundaries)
    run_ranks(stages, waits_as_simulated, stages, schedule, 7, Costs(1, 2, 1, wires=wires))
