"""What the engine really does in a step, action by action and message by message, is what the simulated clock says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
import torch.distributed as dist

from megads.config.pipeline.actions import Action, actions, needs
from megads.config.pipeline.clock import Costs, Timeline, Wire, simulate
from tests.engine.plain import NATIVE, batches, make_engine, rate, settings
from tests.ranks import groups_of, run_ranks

CASES = {
    "1f1b": {},
    "interleaved": {"parallel.virtual_stages": "2"},
    "zb-h1": {"parallel.pipeline_schedule": "zb-h1"},
}
SMALL = {**NATIVE, "model.num_layers": "8", "model.hidden_size": "8", "model.num_heads": "2", "model.num_kv_heads": "2"}
Way = tuple[str, int, int]
"""Kind, receiving virtual stage and micro-batch of a message."""


class Record:
    """What one rank does: each step of its stage with the time, each message that it posts."""

    def __init__(self, groups: Any, virtual_stages: int):
        self.ranks, self.virtual_stages = groups.ranks("pipe"), virtual_stages
        self.times: list[tuple[Any, int]] = []
        self.sends: list[tuple[Way, int]] = []
        self.receives: list[tuple[Way, int]] = []

    def step(self, step: Any) -> None:
        self.times.append((step, time.monotonic_ns()))

    def post(self, operations: list[Any]) -> None:
        for each in operations:
            virtual, is_backward = divmod(each.tag, 2)
            micro_batch, virtual = divmod(virtual, self.virtual_stages)
            found = ("FB"[is_backward], virtual, micro_batch), self.ranks.index(each.peer)
            (self.sends if each.op is dist.isend else self.receives).append(found)

    def ends(self) -> dict[Action, int]:
        """Return when each action was over: the next step, or the end of all, comes after it."""
        after = [at for _, at in self.times[1:]]
        return {step: at for (step, _), at in zip(self.times, after, strict=False) if isinstance(step, Action)}


@contextmanager
def recorded(engine: Any, groups: Any) -> Iterator[Record]:
    """Record the passes in the block, with the messages that go to torch."""
    stage = engine.pipeline
    record, really = Record(groups, stage.virtual_stages), dist.batch_isend_irecv

    def post(operations: list[Any]) -> list[Any]:
        record.post(operations)
        return really(operations)

    stage.watch, dist.batch_isend_irecv = record.step, post
    try:
        yield record
    finally:
        stage.watch, dist.batch_isend_irecv = None, really
        record.step(None)


def way(action: Action, stage: int, stages: int) -> Way:
    virtual = action.chunk * stages + stage + (1 if action.kind == "F" else -1)
    return action.kind, virtual, action.micro_batch


def messages_agree(own: Record, timeline: Timeline, stage: int) -> None:
    """Between two stages messages go in the simulated order, and come in the order in which the other one sends."""
    stages = len(timeline.stages)
    simulated = [(way(each.action, stage, stages), each.target) for each in timeline.sent[stage]]
    coming = [
        (way(each.action, other, stages), other)
        for other, sent in enumerate(timeline.sent)
        for each in sent
        if each.target == stage
    ]
    assert simulated
    assert coming
    for peer in range(stages):
        assert [each for each, to in own.sends if to == peer] == [each for each, to in simulated if to == peer]
        assert [each for each, at in own.receives if at == peer] == [each for each, at in coming if at == peer]


def does_what_is_simulated(pipe: int, schedule: str, micro_batches: int) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    sizes = {"train.micro_batch": str(8 // micro_batches), "train.grad_acc_steps": str(micro_batches)}
    run, groups = settings({"pipe": pipe}, **SMALL, **CASES[schedule], **sizes), groups_of(pipe=pipe)
    engine = make_engine(run, groups)
    with recorded(engine, groups) as own:
        engine.train_step(batches(run, 0, 0), rate(0))
    everyone: list[Any] = [None] * pipe
    dist.all_gather_object(everyone, own.ends())

    orders = actions(schedule, pipe, chunks, micro_batches)
    # Any times give the same order on a stage and on a link; those of messages differ from boundary to boundary.
    wires = tuple(Wire(Fraction(at % 3, 2), Fraction(1, 4)) for at in range(pipe * chunks - 1))
    timeline = simulate(orders, Costs(1, 1, 1, wires=wires))
    stage = groups.pipe_rank
    assert [step for step, _ in own.times if isinstance(step, Action)] == [
        span.action for span in sorted(timeline.stages[stage], key=lambda span: span.start)
    ]
    messages_agree(own, timeline, stage)
    waited = 0
    for at, order in enumerate(orders):
        ended = [everyone[at][action] for action in order]
        assert ended == sorted(ended)
        for action in order:
            other = needs(action, at, pipe, chunks)
            if other is not None:
                assert everyone[at][action] > everyone[other[0]][other[1]], f"{action} of stage {at} before {other}"
                waited += 1
    assert waited == 2 * micro_batches * (pipe * chunks - 1)


@pytest.mark.parametrize("schedule", CASES)
@pytest.mark.parametrize(("pipe", "micro_batches"), [(2, 4), (4, 8), (4, 2)])
def test_a_step_of_the_engine_is_the_simulated_one(schedule: str, pipe: int, micro_batches: int):
    run_ranks(pipe, does_what_is_simulated, pipe, schedule, micro_batches)
