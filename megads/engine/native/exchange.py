"""Messages between pipeline stages: activations down, their gradients up, both directions in one call.

Shape and type are known to every stage, so none is sent. Receives are posted when the plan of messages says so and
waited for when their action begins; a sent tensor is kept until it is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.pipeline.messages import Exchange, Message

MOST_SENT = 8
"""Sent tensors that are kept at most. In the plan's order of messages no wait for one of them lasts forever."""

_ABANDONED: list[object] = []
"""Tensors of steps that failed. A backend's threads may still read and write them, until the process ends."""

Key = tuple[str, int, int]
"""Kind, receiving virtual stage and micro-batch of a message."""


class Messages:
    """The messages of this rank's chunks; of every step its own.

    Args:
        virtual_stages: of the whole pipeline.
        shape: of every message.
        dtype: of every message.
    """

    def __init__(
        self, groups: Groups, virtual_stages: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ):
        self.group, self.ranks = groups.process_group("pipe"), groups.ranks("pipe")
        self.virtual_stages, self.shape = virtual_stages, shape
        self._new: Callable[[], Tensor] = lambda: torch.empty(shape, dtype=dtype, device=device)
        self._outgoing: dict[Key, Tensor] = {}
        self._posting: list[Tensor] = []
        self._sent: deque[tuple[Tensor, Sequence[Any]]] = deque()
        self._incoming: dict[Key, tuple[Tensor, Sequence[Any]]] = {}

    def put(self, kind: str, virtual: int, micro_batch: int, x: Tensor) -> None:
        """Hand over what the next :meth:`post` sends. ``virtual`` is the virtual stage that receives it."""
        assert x.shape == self.shape, f"a message of shape {tuple(x.shape)}, not {self.shape}"
        self._outgoing[kind, virtual, micro_batch] = x.contiguous()

    def post(self, exchange: Exchange) -> None:
        """Start the messages of one exchange: none waits for another of them."""
        self._forget_sent()
        sends = [(self._outgoing.pop(_key(each)), each) for each in exchange.sends]
        receives = [(self._new(), each) for each in exchange.receives]
        self._posting = [x for x, _ in (*sends, *receives)]
        sent, received = [[self._to(x, each) for x, each in part] for part in (sends, receives)]
        found = dist.start_exchange(sent, received, self.group)
        count = len(sends) + len(receives)
        works = [[work] for work in found] if len(found) == count else [found] * count
        self._sent.extend((x, work) for (x, _), work in zip(sends, works, strict=False))
        while len(self._sent) > MOST_SENT:
            self._wait_sent()
        for (x, each), work in zip(receives, works[len(sends) :], strict=True):
            self._incoming[_key(each)] = x, work

    def take(self, kind: str, virtual: int, micro_batch: int) -> Tensor:
        """Return what was received, once it is here."""
        _wait(self._incoming[kind, virtual, micro_batch][1])
        return self._incoming.pop((kind, virtual, micro_batch))[0]

    def finish(self) -> None:
        """Wait until everything is sent."""
        while self._sent:
            self._wait_sent()
        assert not self._outgoing, f"never sent: {sorted(self._outgoing)}"
        assert not self._incoming, f"never used: {sorted(self._incoming)}"

    def abandon(self) -> None:
        """Keep the memory of messages under way: the step has failed, and nobody will wait for them."""
        _ABANDONED.append((self._sent, self._incoming, self._posting))

    def _forget_sent(self) -> None:
        while self._sent and all(work.is_completed() for work in self._sent[0][1]):
            self._wait_sent()

    def _wait_sent(self) -> None:
        _wait(self._sent[0][1])
        self._sent.popleft()

    def _to(self, x: Tensor, message: Message) -> tuple[Tensor, int, int]:
        # Where a backend has tags, messages in a wrong order never arrive instead of being mistaken for one another.
        tag = (message.micro_batch * self.virtual_stages + message.virtual) * 2 + (message.kind == "B")
        return x, self.ranks[message.peer], tag


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _key(message: Message) -> Key:
    return message.kind, message.virtual, message.micro_batch
