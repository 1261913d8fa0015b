"""Messages between stages: each arrives as what it is, in any order of use."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megads.config.pipeline.messages import Exchange, Message
from megads.engine.micro_batches import Splitter
from megads.engine.native import exchange
from megads.engine.native.exchange import MOST_SENT, Messages
from megads.engine.native.stage import Stage
from megads.models.build import build_model
from tests.parity.layouts import Layout, batches
from tests.ranks import groups_of, run_ranks

SHAPE = (2, 3)


def messages(virtual_stages: int = 4) -> Messages:
    groups = groups_of(pipe=dist.get_world_size())
    return Messages(groups, virtual_stages, SHAPE, torch.float32, torch.device("cpu"))


def arrives_as_what_it_is() -> None:
    ours, rank = messages(), dist.get_rank()
    other = 1 - rank
    # Rank 0 sends F to virtual stages 1 and 3, rank 1 the gradients back; used in the reverse order.
    kinds = ("F", "B")
    for virtual in (1, 3):
        ours.put(kinds[rank], virtual - rank, 5, torch.full(SHAPE, 10.0 * rank + virtual))
    ours.post(
        Exchange(
            tuple(Message(kinds[rank], virtual - rank, 5, other) for virtual in (1, 3)),
            tuple(Message(kinds[other], virtual - other, 5, other) for virtual in (1, 3)),
        )
    )
    for virtual in (3, 1):
        found = ours.take(kinds[other], virtual - other, 5)
        assert torch.equal(found, torch.full(SHAPE, 10.0 * other + virtual))
    ours.finish()


def test_a_message_arrives_as_what_it_is() -> None:
    run_ranks(2, arrives_as_what_it_is)


def keeps_few() -> None:
    ours, rank, count = messages(2), dist.get_rank(), 3 * MOST_SENT
    for each in range(count):
        message = Message("F", 1, each, 1 - rank)
        if rank:
            ours.post(Exchange((), (message,)))
            assert ours.take("F", 1, each)[0, 0] == each
        else:
            ours.put("F", 1, each, torch.full(SHAPE[::-1], float(each)).t())  # not contiguous
            ours.post(Exchange((message,), ()))
            assert len(ours._sent) <= MOST_SENT
    ours.finish()
    assert not ours._sent


def test_few_sent_tensors_are_kept() -> None:
    run_ranks(2, keeps_few)


def left_over() -> None:
    ours, rank = messages(2), dist.get_rank()
    if rank == 0:
        with pytest.raises(AssertionError, match="not \\(2, 3\\)"):
            ours.put("F", 1, 0, torch.zeros(3, 2))
        ours.put("F", 1, 0, torch.zeros(SHAPE))
        with pytest.raises(AssertionError, match="never sent"):
            ours.finish()
        ours.post(Exchange((Message("F", 1, 0, 1),), ()))
        ours.finish()
    else:
        ours.post(Exchange((), (Message("F", 1, 0, 0),)))
        with pytest.raises(AssertionError, match="never used"):
            ours.finish()
        ours.take("F", 1, 0)


def test_what_is_left_over_is_an_error() -> None:
    run_ranks(2, left_over)


class _Done:
    """Work of a backend that has one for all messages of a call."""

    def __init__(self) -> None:
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1

    def is_completed(self) -> bool:
        return False


def test_one_work_may_stand_for_all_messages() -> None:
    """As with NCCL, whose calls are one launch."""
    run_ranks(2, waits_for_the_one_work)


def waits_for_the_one_work() -> None:
    import megads.timing.collectives as collectives

    whole, work = collectives.start_exchange, _Done()
    collectives.start_exchange = lambda *_: [work]
    try:
        ours = messages(2)
        ours.put("B", 0, 0, torch.zeros(SHAPE))
        ours.post(Exchange((Message("B", 0, 0, 0),), (Message("F", 1, 0, 0), Message("F", 1, 1, 0))))
        ours.take("F", 1, 1)
        ours.take("F", 1, 0)
        assert work.waited == 2
        ours.finish()
        assert work.waited == 3
    finally:
        collectives.start_exchange = whole


def abandoned_messages_keep_their_memory() -> None:
    ours, rank = messages(2), dist.get_rank()
    x = torch.ones(SHAPE)
    if rank:
        ours.post(Exchange((), (Message("F", 1, 0, 0),)))
        assert torch.equal(ours.take("F", 1, 0), x)
        return
    ours.put("F", 1, 0, x)
    ours.post(Exchange((Message("F", 1, 0, 1),), ()))
    ours.abandon()
    sent, _, _ = exchange._ABANDONED.pop()
    assert sent[0][0].data_ptr() == x.data_ptr()
    ours.finish()


def test_a_step_that_fails_keeps_the_memory_of_its_messages() -> None:
    """Else a thread of the backend would write to memory that is something else by now."""
    run_ranks(2, abandoned_messages_keep_their_memory)
    run_ranks(2, abandons_when_it_fails)


def abandons_when_it_fails() -> None:
    groups, run = groups_of(pipe=2), Layout("llama", pp=2).run()
    stage = Stage([build_model(run, groups).train()], groups, torch.device("cpu"), "1f1b")
    split = Splitter(run, groups, None)
    parts = split(batches(run, 0, 0))

    def fail(step: object) -> None:
        raise ZeroDivisionError("planted")

    stage.watch = fail
    before = len(exchange._ABANDONED)
    with pytest.raises(ZeroDivisionError):
        stage.train(parts, split.token_weight(parts), None, bool)
    assert len(exchange._ABANDONED) == before + 1
    exchange._ABANDONED.pop()
