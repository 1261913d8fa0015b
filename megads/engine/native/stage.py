"""A pipeline stage at work: the actions of a schedule on the stage's chunks, and the messages between them.

A stage holds one or more *chunks*, runs of neighbouring steps of the model; chunk ``c`` of stage ``s`` of ``p`` is
virtual stage ``c p + s``. What it does in which order is decided by ``megads.config.pipeline``; here it is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.config.pipeline.actions import Action, actions
from megads.config.pipeline.messages import Exchange, plan
from megads.engine.micro_batches import MicroBatch
from megads.engine.native.backward import run_backward
from megads.engine.native.exchange import Messages
from megads.models.gpt import GPT
from megads.parallel.weight_gradients import LaterGradients
from megads.timing.sections import BACKWARD, FORWARD, section

Step = Action | Exchange


@cache
def steps_of(
    schedule: str, stages: int, chunks: int, micro_batches: int, stage: int, *, is_training: bool
) -> tuple[Step, ...]:
    """Return what a stage does with the micro-batches of a step, in order; without training the forward passes only."""
    orders = actions(schedule, stages, chunks, micro_batches)
    if not is_training:
        orders = [[action for action in order if action.kind == "F"] for order in orders]
    return tuple(plan(orders)[stage])


class Stage:
    """This rank's chunks and how micro-batches go through them.

    What autograd needs of a micro-batch is held from its F to its B. The output of a chunk is needed by the next
    stage only: its memory is freed once it is sent.

    Args:
        chunks: of this stage, in the order of the model.
        schedule: see ``megads.config.pipeline.actions``.
        around_backward: what every backward pass runs in.
        end_pass: called with a chunk when all gradients of one of its micro-batches are found.
    """

    def __init__(
        self,
        chunks: Sequence[GPT],
        groups: Groups,
        device: torch.device,
        schedule: str,
        around_backward: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        end_pass: Callable[[int], None] = lambda chunk: None,
    ):
        self.chunks, self.groups, self.device, self.schedule = list(chunks), groups, device, schedule
        self.dtype = next(self.chunks[0].parameters()).dtype
        self.virtual_stages = len(self.chunks) * groups.pipe_size
        self.is_last = groups.pipe_rank == groups.pipe_size - 1
        self.later, self.around_backward, self.end_pass = LaterGradients(), around_backward, end_pass
        self.watch: Callable[[Step], None] | None = None  # called before each step, see the tests

    def train(
        self, parts: Sequence[MicroBatch], weight: Tensor, root: Tensor | None, found: Callable[[Tensor], None]
    ) -> None:
        """Do the forward and backward passes of a step.

        Args:
            weight: of a token's loss; only the last stage needs it.
            root: the gradient of every micro-batch's loss, [] in its type; None: 1.
            found: takes every micro-batch's loss, on the last stage.
        """
        steps = self._steps(len(parts), is_training=True)
        puts_off = any(isinstance(step, Action) and step.kind == "W" for step in steps)
        with self.later.active() if puts_off else contextlib.nullcontext():
            _Training(self, parts, weight, root, found, puts_off=puts_off).run(steps)

    def evaluate(self, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]) -> list[Tensor | None]:
        """Do the forward passes; return ``measure`` of every micro-batch's outputs and labels, on the last stage."""
        passing = _Passing(self, parts, measure)
        with torch.no_grad():
            passing.run(self._steps(len(parts), is_training=False))
        return passing.found

    def virtual(self, chunk: int) -> int:
        """Return the number of a chunk in the whole pipeline."""
        return chunk * self.groups.pipe_size + self.groups.pipe_rank

    def _steps(self, micro_batches: int, *, is_training: bool) -> tuple[Step, ...]:
        stages, chunks, stage = self.groups.pipe_size, len(self.chunks), self.groups.pipe_rank
        return steps_of(self.schedule, stages, chunks, micro_batches, stage, is_training=is_training)


class _Passes:
    """The passes of some micro-batches through a stage."""

    def __init__(self, stage: Stage, parts: Sequence[MicroBatch]):
        self.stage, self.parts = stage, parts
        shape = stage.chunks[0].boundary(*parts[0].tokens.shape)
        self.messages = Messages(stage.groups, stage.virtual_stages, shape, stage.dtype, stage.device)

    def run(self, steps: Sequence[Step]) -> None:
        """Do every step, in order."""
        try:
            for step in steps:
                self._do(step)
            self.messages.finish()
        except BaseException:
            self.messages.abandon()
            self.stage.later.forget()
            raise

    def _do(self, step: Step) -> None:
        if self.stage.watch is not None:
            self.stage.watch(step)
        if isinstance(step, Exchange):
            self.messages.post(step)
        else:
            do = {"F": self.forward, "B": self.backward, "W": self.weights}
            do[step.kind](step.chunk, step.micro_batch)

    def forward(self, chunk: int, micro_batch: int) -> None:
        """Do F."""
        raise NotImplementedError

    def backward(self, chunk: int, micro_batch: int) -> None:
        """Do B."""
        raise NotImplementedError

    def weights(self, chunk: int, micro_batch: int) -> None:
        """Do W."""
        raise NotImplementedError

    def input(self, chunk: int, micro_batch: int) -> Tensor:
        """Return what goes into a chunk: tokens, or what the chunk before it has sent."""
        virtual = self.stage.virtual(chunk)
        if virtual == 0:
            return self.parts[micro_batch].tokens
        return self.messages.take("F", virtual, micro_batch)

    def is_last(self, chunk: int) -> bool:
        """Return whether a chunk is the last of the model."""
        return self.stage.virtual(chunk) == self.stage.virtual_stages - 1


class _Passing(_Passes):
    def __init__(self, stage: Stage, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]):
        super().__init__(stage, parts)
        self.measure = measure
        self.found: list[Tensor | None] = [None] * len(parts)

    def forward(self, chunk: int, micro_batch: int) -> None:
        x, part, module = self.input(chunk, micro_batch), self.parts[micro_batch], self.stage.chunks[chunk]
        if self.is_last(chunk):
            self.found[micro_batch] = module(x, part.target, documents=part.documents, measure=self.measure)
        else:
            y = module(x, documents=part.documents)
            self.messages.put("F", self.stage.virtual(chunk) + 1, micro_batch, y)


class _Training(_Passes):
    def __init__(
        self,
        stage: Stage,
        parts: Sequence[MicroBatch],
        weight: Tensor,
        root: Tensor | None,
        found: Callable[[Tensor], None],
        *,
        puts_off: bool,
    ):
        super().__init__(stage, parts)
        self.weight, self.root, self.found, self.puts_off = weight, root, found, puts_off
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # inputs and outputs, for the backward pass

    def forward(self, chunk: int, micro_batch: int) -> None:
        x, part, module = self.input(chunk, micro_batch), self.parts[micro_batch], self.stage.chunks[chunk]
        if x.is_floating_point():
            x.requires_grad_()
        kept = {"documents": part.documents, "draws": part.draws}
        with section(FORWARD):
            if self.is_last(chunk):
                y = module(x, part.target, self.weight, **kept)
                self.found(y.detach())
            else:
                y = module(x, **kept)
                self.messages.put("F", self.stage.virtual(chunk) + 1, micro_batch, y.detach())
                y.data = y.new_empty(1).expand(y.shape)  # the message has its memory
        self.held[chunk, micro_batch] = x, y

    def backward(self, chunk: int, micro_batch: int) -> None:
        x, y = self.held.pop((chunk, micro_batch))
        virtual, later = self.stage.virtual(chunk), self.stage.later
        grad = self.root if self.is_last(chunk) else self.messages.take("B", virtual, micro_batch)
        putting_off = later.collected((chunk, micro_batch)) if self.puts_off else contextlib.nullcontext()
        with section(BACKWARD), self.stage.around_backward(), putting_off:
            run_backward(y, torch.ones_like(y) if grad is None else grad)
        if not self.puts_off:
            self.stage.end_pass(chunk)
        if virtual > 0:
            assert x.grad is not None
            self.messages.put("B", virtual - 1, micro_batch, x.grad)

    def weights(self, chunk: int, micro_batch: int) -> None:
        with section(BACKWARD):
            self.stage.later.compute((chunk, micro_batch))
        self.stage.end_pass(chunk)
