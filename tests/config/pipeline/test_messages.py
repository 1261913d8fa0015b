"""Stages that send and receive as planned never block each other, not even with sends that wait for the receiver."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from megads.config.pipeline.actions import SCHEDULES, Action, actions, chunks_of, needs
from megads.config.pipeline.messages import Exchange, Message, plan

SIZES = [(2, 1), (2, 4), (2, 5), (3, 2), (3, 7), (4, 8), (4, 11), (8, 9)]


def _planned(schedule: str):
    for stages, micro_batches in SIZES:
        for chunks in (2, 3) if schedule == "interleaved" else (1,):
            orders = actions(schedule, stages, chunks, micro_batches)
            yield orders, plan(orders)


def _blocked(plans: Sequence[Sequence[Action | Exchange]]) -> bool:
    """Return whether the stages block each other where an exchange ends when all its messages have met their peer.

    Both ends of a message are posted, and between two stages messages meet in the order in which they were posted.
    """
    at, met = [0] * len(plans), [0] * len(plans)  # messages of the present exchange that have met
    queues: dict[tuple[int, int], tuple[list[Message], list[Message]]] = {}
    posted: set[tuple[int, int]] = set()
    before = None
    while before != (before := (*at, *met, len(posted))):
        for stage, own in enumerate(plans):
            if at[stage] == len(own):
                continue
            event = own[at[stage]]
            if isinstance(event, Exchange):
                _post(event, stage, queues if (stage, at[stage]) not in posted else {})
                posted.add((stage, at[stage]))
                _meet(queues, met)
                if met[stage] < len(event.sends) + len(event.receives):
                    continue
            at[stage], met[stage] = at[stage] + 1, 0
    return any(done < len(own) for done, own in zip(at, plans, strict=True))


def _post(event: Exchange, stage: int, queues: dict[tuple[int, int], tuple[list[Message], list[Message]]]) -> None:
    for each in event.sends:
        queues.setdefault((stage, each.peer), ([], []))[0].append(each)
    for each in event.receives:
        queues.setdefault((each.peer, stage), ([], []))[1].append(each)


def _meet(queues: dict[tuple[int, int], tuple[list[Message], list[Message]]], met: list[int]) -> None:
    for (source, target), (sent, received) in queues.items():
        while sent and received:
            first, second = sent.pop(0), received.pop(0)
            assert (first.kind, first.virtual, first.micro_batch) == (second.kind, second.virtual, second.micro_batch)
            met[source] += 1
            met[target] += 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nobody_blocks(schedule):
    for _, plans in _planned(schedule):
        assert not _blocked(plans)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_an_action_needs_was_received_and_what_it_gave_is_sent_after_it(schedule):
    for orders, plans in _planned(schedule):
        stages, chunks = len(orders), chunks_of(orders)
        for stage, own in enumerate(plans):
            assert [event for event in own if isinstance(event, Action)] == orders[stage]
            received, done = set(), set()
            for event in own:
                if isinstance(event, Action):
                    other = needs(event, stage, stages, chunks)
                    expected = other is not None and other[0] != stage
                    assert not expected or (event.kind, event.chunk * stages + stage, event.micro_batch) in received
                    done.add(event)
                    continue
                for each in event.sends:
                    step = -1 if each.kind == "F" else 1
                    source = each.virtual + step
                    assert Action(each.kind, source // stages, each.micro_batch) in done
                    assert (source % stages, each.virtual % stages) == (stage, each.peer)
                received |= {(each.kind, each.virtual, each.micro_batch) for each in event.receives}
            assert len(received) == sum(needs(each, stage, stages, chunks) is not None for each in orders[stage])


def test_the_check_sees_stages_that_block_each_other():
    plans = plan(actions("1f1b", 2, 1, 2))
    assert not _blocked(plans)
    late = [event for event in plans[0] if isinstance(event, Action)]
    assert _blocked([late, plans[1]])


def test_receives_are_posted_before_what_computes_meanwhile():
    shown = ["".join(map(_letter, own)) for own in plan(actions("1f1b", 2, 1, 2))]
    # Stage 1 receives micro-batch 1 while it works on micro-batch 0.
    assert shown == ["F>F><<BB", "<<FB>FB>"]


def _letter(event: Action | Exchange) -> str:
    if isinstance(event, Action):
        return event.kind
    return ">" * bool(event.sends) + "<" * bool(event.receives)
