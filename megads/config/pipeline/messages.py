"""When the stages of a pipeline send and receive, so that no order of messages can make two of them wait forever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from megads.config.pipeline.actions import Action, chunks_of
from megads.config.pipeline.clock import Costs, Number, Timeline, simulate


@dataclass(frozen=True)
class Message:
    """The output of a forward pass (F), or the gradient of an input (B), on its way to another stage.

    Attributes:
        virtual: the virtual stage that receives it.
        peer: the other stage: where it goes, or comes from.
    """

    kind: Literal["F", "B"]
    virtual: int
    micro_batch: int
    peer: int


@dataclass(frozen=True)
class Exchange:
    """Messages that a stage posts together, between two of its actions."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()


def plan(orders: Sequence[Sequence[Action]]) -> list[list[Action | Exchange]]:
    """Return the actions of every stage with the exchanges between them.

    All lists are parts of one order of the whole pipeline, in which a message is one event of two stages: that of a
    simulated clock with a backward pass of two forwards. A stage that waits, waits for an event before its own, so that
    even sends that complete only when they are received never block each other. What an action needs is received
    before it, and sent after the action it comes from; messages of one moment are posted together. An exchange that
    only receives comes before the actions since the exchange before it: nothing that it waits for needs them, and the
    message arrives while they compute.
    """
    stages = len(orders)
    timeline = simulate(orders, Costs())
    posted: dict[tuple[int, Number], tuple[list[Message], list[Message]]] = {}
    for moment, source, target, kind, virtual, each in _crossings(timeline, chunks_of(orders)):
        posted.setdefault((source, moment), ([], []))[0].append(Message(kind, virtual, each, target))
        posted.setdefault((target, moment), ([], []))[1].append(Message(kind, virtual, each, source))
    found: list[list[Action | Exchange]] = []
    for stage in range(stages):
        events: list[tuple[Number, int, Action | Exchange]] = [
            (moment, 0, Exchange(tuple(sends), tuple(receives)))
            for (at, moment), (sends, receives) in posted.items()
            if at == stage
        ]
        events += [(span.start, 1, span.action) for span in timeline.stages[stage]]
        found.append(_receives_first([event for _, _, event in sorted(events, key=lambda event: event[:2])]))
    return found


def _receives_first(events: list[Action | Exchange]) -> list[Action | Exchange]:
    """Return the events with each exchange that only receives right after the exchange before it."""
    found: list[Action | Exchange] = []
    after = 0
    for event in events:
        place = len(found)
        if isinstance(event, Exchange):
            place = len(found) if event.sends else after
            after = place + 1
        found.insert(place, event)
    return found


def _crossings(timeline: Timeline, chunks: int) -> Iterator[tuple[Number, int, int, Literal["F", "B"], int, int]]:
    """Yield moment, sender, receiver, kind, receiving virtual stage and micro-batch of every message."""
    stages = len(timeline.stages)
    for stage, spans in enumerate(timeline.stages):
        for span in spans:
            action = span.action
            if action.kind == "W":
                continue
            virtual = action.chunk * stages + stage + (1 if action.kind == "F" else -1)
            if 0 <= virtual < stages * chunks and virtual % stages != stage:
                yield span.end, stage, virtual % stages, action.kind, virtual, action.micro_batch
