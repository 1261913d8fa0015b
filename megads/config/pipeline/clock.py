"""A simulated clock: when every stage of a pipeline does what, and for how long it is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from megads.config.pipeline.actions import Action, chunks_of, needs
from megads.errors import ConfigError

Number = int | float | Fraction


@dataclass(frozen=True)
class Costs:
    """Times, in any unit.

    Attributes:
        forward: of a micro-batch through a chunk.
        backward: of its backward pass without the weight gradients.
        weight: of its weight gradients. B takes ``backward + weight`` where the schedule has no W.
        message: from the end of an action to the moment that another stage can use its result.
        work: factors of every chunk of every stage, ``work[stage][chunk]``; empty: all 1.
    """

    forward: Number = 1
    backward: Number = 1
    weight: Number = 1
    message: Number = 0
    work: tuple[tuple[Number, ...], ...] = ()


@dataclass(frozen=True)
class Span:
    """An action with its start and its end."""

    action: Action
    start: Number
    end: Number


@dataclass(frozen=True)
class Timeline:
    """A step of all stages, in the order of each."""

    stages: tuple[tuple[Span, ...], ...]

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
    """Return when the actions of every stage start and end. A stage does one at a time; messages take no stage's time.

    Raises:
        ConfigError: stages wait for each other.
    """
    costs = costs or Costs()
    stages, chunks = len(orders), chunks_of(orders)
    splits = any(action.kind == "W" for action in orders[0])
    times = {"F": costs.forward, "B": costs.backward if splits else costs.backward + costs.weight, "W": costs.weight}
    ends: list[dict[Action, Number]] = [{} for _ in orders]
    spans: list[list[Span]] = [[] for _ in orders]
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            for action in order[len(spans[stage]) :]:
                other = needs(action, stage, stages, chunks)
                ready: Number = 0
                if other is not None:
                    if other[1] not in ends[other[0]]:
                        break
                    ready = ends[other[0]][other[1]] + (costs.message if other[0] != stage else 0)
                start = max(ready, spans[stage][-1].end) if spans[stage] else ready
                factor = costs.work[stage][action.chunk] if costs.work else 1
                ends[stage][action] = start + times[action.kind] * factor
                spans[stage].append(Span(action, start, ends[stage][action]))
                moved = True
    left = [
        f"{order[len(done)]} of stage {at}"
        for at, (order, done) in enumerate(zip(orders, spans, strict=True))
        if len(done) < len(order)
    ]
    if left:
        raise ConfigError(f"pipeline stages wait for each other at {', '.join(left)}")
    return Timeline(tuple(map(tuple, spans)))
