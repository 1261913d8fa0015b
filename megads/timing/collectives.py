"""The collectives of ``torch.distributed`` that training waits in, each a section of the step's time.

To be imported in its place, under its name: what is not here is not for a step. What a
collective costs is what the rank waits for it: in the call, or, of one that runs in the background
, in the ``wait`` at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work, get_process_group_ranks, get_rank, get_world_size

from megads.timing.sections import COMMUNICATION, section

__all__ = [
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "are_sent",
    "broadcast",
    "exchange",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "nothing_sent",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "send",
    "start_exchange",
    "timed",
]

F = TypeVar("F", bound=Callable[..., Any])


class Waited:
    """Work under way, whose ``wait`` counts as communication; all else is the work's own."""

    __slots__ = ("work",)

    def __init__(self, work: Any):
        self.work = work

    def wait(self, *args: Any, **options: Any) -> Any:
        """Wait for the work."""
        with section(COMMUNICATION):
            return self.work.wait(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


class _Done:
    """Work that is done."""

    def wait(self, *_: Any, **__: Any) -> None:
        """Return at once."""


_sends = True


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Have the collectives in the block do nothing: they are asked for the shapes of results alone."""
    global _sends
    before, _sends = _sends, False
    try:
        yield
    finally:
        _sends = before


def are_sent() -> bool:
    """Return whether collectives do what they are asked for: not inside of :func:`nothing_sent`."""
    return _sends


def timed(collective: F) -> F:
    """Return ``collective`` as a section of communication, and so the wait for what it starts."""
    name = collective.__name__
    is_torchs = getattr(dist, name, None) is collective

    @functools.wraps(collective)
    def call(*args: Any, **options: Any) -> Any:
        if not _sends:
            return _Done()
        # By its name, so that whoever replaces torch's own, to count or to delay it, does so here, too.
        now = getattr(dist, name) if is_torchs else collective
        with section(COMMUNICATION):
            result = now(*args, **options)
        return Waited(result) if hasattr(result, "wait") else result

    return call  # type: ignore[return-value]


all_gather_into_tensor = timed(dist.all_gather_into_tensor)
all_reduce = timed(dist.all_reduce)
all_to_all_single = timed(dist.all_to_all_single)
broadcast = timed(dist.broadcast)
recv = timed(dist.recv)
reduce = timed(dist.reduce)
reduce_scatter_tensor = timed(dist.reduce_scatter_tensor)
send = timed(dist.send)


def exchange(sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]], group: ProcessGroup) -> None:
    """Send and receive at the same time; with each tensor its destination or source, a global rank.

    On accelerators one launch: messages up and down do not wait for each other.
    """
    operations = [dist.P2POp(dist.isend, tensor, rank, group) for tensor, rank in sent]
    operations += [dist.P2POp(dist.irecv, tensor, rank, group) for tensor, rank in received]
    with section(COMMUNICATION):
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def start_exchange(
    sent: Sequence[tuple[Tensor, int, int]], received: Sequence[tuple[Tensor, int, int]], group: ProcessGroup
) -> list[Any]:
    """Start what :func:`exchange` does; a tag comes with every message, which some backends ignore.

    Returns:
        what to wait for: of every message, those sent first, or one for all of them.
    """
    operations = [dist.P2POp(dist.isend, tensor, rank, group, tag) for tensor, rank, tag in sent]
    operations += [dist.P2POp(dist.irecv, tensor, rank, group, tag) for tensor, rank, tag in received]
    with section(COMMUNICATION):
        return [Waited(work) for work in dist.batch_isend_irecv(operations)]
