"""A simulated clock: when every stage of a pipeline does what, and for how long it is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from megads.config.pipeline.actions import Action, chunks_of
from megads.errors import ConfigError

Number = int | float | Fraction


class Wire(NamedTuple):
    """What a message between two neighbouring virtual stages takes, in either direction.

    A stage sends its messages to another one in turn; those to different stages, and the two directions, are
    independent.
    """

    seconds: Number = 0  # of the bytes: the next message to the same stage waits
    latency: Number = 0  # from then on until the message is there


@dataclass(frozen=True)
class Costs:
    """Times, in any unit.

    Attributes:
        forward: of a micro-batch through a chunk.
        backward: of its backward pass without the weight gradients.
        weight: of its weight gradients. B takes ``backward + weight`` where the schedule has no W.
        message: from the end of an action to the moment that another stage can use its result.
        work: factors of every chunk of every stage, ``work[stage][chunk]``; empty: all 1.
        passes: forward, backward and weight of every chunk of every stage, instead of those above; empty: those.
        wires: of virtual stage ``v`` to the next one, instead of ``message``; empty: that.
        is_blocking: whether a stage waits until its message has left.
    """

    forward: Number = 1
    backward: Number = 1
    weight: Number = 1
    message: Number = 0
    work: tuple[tuple[Number, ...], ...] = ()
    passes: tuple[tuple[tuple[Number, Number, Number], ...], ...] = ()
    wires: tuple[Wire, ...] = ()
    is_blocking: bool = False

    def of(self, stage: int, chunk: int) -> tuple[Number, Number, Number]:
        """Return forward, backward and weight of a chunk of a stage."""
        if self.passes:
            return self.passes[stage][chunk]
        factor = self.work[stage][chunk] if self.work else 1
        return self.forward * factor, self.backward * factor, self.weight * factor

    def wire(self, virtual: int) -> Wire:
        """Return the wire between a virtual stage and the next one."""
        return self.wires[virtual] if self.wires else Wire(0, self.message)


class Span(NamedTuple):
    """An action with its start and its end."""

    action: Action
    start: Number
    end: Number


class Sent(NamedTuple):
    """A message: the action that it comes from, and its way."""

    action: Action
    target: int  # the stage that receives it
    start: Number
    left: Number  # when the next one to the same stage can start
    end: Number  # when it is there


@dataclass(frozen=True)
class Timeline:
    """A step of all stages, in the order of each; and what each one sends."""

    stages: tuple[tuple[Span, ...], ...]
    sent: tuple[tuple[Sent, ...], ...] = ()

    @property
    def length(self) -> Number:
        """Return the time of the step: from 0 to the end of the last action."""
        return max(spans[-1].end for spans in self.stages)

    def busy(self, stage: int) -> Number:
        """Return the time in which a stage computes."""
        return sum(span.end - span.start for span in self.stages[stage])

    def idle_share(self, stage: int | None = None) -> Number:
        """Return the share of the step in which a stage waits; None: the mean of all stages."""
        if stage is None:
            shares = [self.idle_share(each) for each in range(len(self.stages))]
            return sum(shares) / len(shares)
        return 1 - self.busy(stage) / self.length

    def most_in_flight(self, stage: int) -> int:
        """Return how many chunks of micro-batches a stage holds at most, from the start of F to the end of B or W."""
        spans = self.stages[stage]
        last = "W" if any(span.action.kind == "W" for span in spans) else "B"
        held = most = 0
        for span in spans:
            held += span.action.kind == "F"
            most = max(most, held)
            held -= span.action.kind == last
        return most


def simulate(orders: Sequence[Sequence[Action]], costs: Costs | None = None) -> Timeline:
    """Return when the actions of every stage start and end. A stage does one at a time, as soon as it can.

    Messages take no stage's time, unless they block. A stage that sends does not wait for the one that receives.

    Raises:
        ConfigError: stages wait for each other.
    """
    run = _Run(orders, costs or Costs())
    while any([run.proceed(stage) for stage in range(len(orders))]):
        pass
    left = [
        f"{order[len(done)]} of stage {at}"
        for at, (order, done) in enumerate(zip(orders, run.spans, strict=True))
        if len(done) < len(order)
    ]
    if left:
        raise ConfigError(f"pipeline stages wait for each other at {', '.join(left)}")
    return Timeline(tuple(map(tuple, run.spans)), tuple(map(tuple, run.sent)))


class _Run:
    """A simulation on its way."""

    def __init__(self, orders: Sequence[Sequence[Action]], costs: Costs):
        self.orders, self.costs = orders, costs
        self.stages, self.chunks = len(orders), chunks_of(orders)
        self.last = self.stages * self.chunks - 1  # virtual stage
        splits = any(action.kind == "W" for action in orders[0])
        self.times: list[list[dict[str, Number]]] = []
        for stage in range(self.stages):
            each = [costs.of(stage, chunk) for chunk in range(self.chunks)]
            self.times.append([{"F": f, "B": b if splits else b + w, "W": w} for f, b, w in each])
        self.spans: list[list[Span]] = [[] for _ in orders]
        self.sent: list[list[Sent]] = [[] for _ in orders]
        self.free: list[Number] = [0] * self.stages
        self.links: dict[tuple[int, int], Number] = {}
        # What is ready for the action of this kind, virtual stage and micro-batch, and when.
        self.ready: dict[tuple[str, int, int], Number] = {}

    def proceed(self, stage: int) -> bool:
        """Do the actions of a stage up to one that has to wait; return whether there was one."""
        spans, order = self.spans[stage], self.orders[stage]
        before = len(spans)
        for at in range(before, len(order)):
            action = order[at]
            kind, chunk, micro_batch = action.kind, action.chunk, action.micro_batch
            virtual = chunk * self.stages + stage
            start = self.free[stage]
            if (kind == "F" and virtual > 0) or (kind == "B" and virtual < self.last):
                ready = self.ready.pop((kind, virtual, micro_batch), None)
                if ready is None:
                    break
                start = max(start, ready)
            end = start + self.times[stage][chunk][kind]
            self.free[stage] = end
            spans.append(Span(action, start, end))
            if kind != "W":
                self._hand_over(stage, virtual, action, end)
        return len(spans) > before

    def _hand_over(self, stage: int, virtual: int, action: Action, end: Number) -> None:
        """Have the result of an action be ready for the next virtual stage."""
        other = virtual + 1 if action.kind == "F" else virtual - 1
        if not 0 <= other <= self.last:
            return
        target = other % self.stages
        ready = end
        if target != stage:
            wire = self.costs.wire(min(virtual, other))
            start = max(end, self.links.get((stage, target), end))
            left = start + wire.seconds
            ready = left + wire.latency
            self.links[stage, target] = left
            self.sent[stage].append(Sent(action, target, start, left, ready))
            if self.costs.is_blocking:
                self.free[stage] = left
        self.ready[action.kind, other, action.micro_batch] = ready
