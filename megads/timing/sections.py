"""Where the time of a step goes: code says what it is about to do, and a clock, if one runs, times it.

Sections nest: the outer one pauses while the inner one runs, so that a collective
inside a forward pass counts as communication and not as forward pass. Without a clock a
section costs a fraction of a microsecond and does nothing.

One clock a process, not one a thread: autograd runs backward passes of devices on threads of
its own, while the thread that started them waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
COMMUNICATION = "communication"
OTHER = "other"


F = TypeVar("F", bound=Callable[..., Any])


class Clock(Protocol):
    """Times sections."""

    def switch(self, name: str) -> str:
        """Start the section ``name``; return what ran until now."""


class _Running:
    clock: Clock | None = None


def run_clock(clock: Clock | None) -> None:
    """Have ``clock`` time every section from now on; None: no clock."""
    _Running.clock = clock


class section:
    """A block that is ``name``, until it ends or a section inside it begins."""

    __slots__ = ("clock", "name", "outer")

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.clock = _Running.clock
        if self.clock is not None:
            self.outer = self.clock.switch(self.name)

    def __exit__(self, *error: object) -> None:
        if self.clock is not None:
            self.clock.switch(self.outer)


def in_section(name: str) -> Callable[[F], F]:
    """Return a decorator for functions all of which are ``name``."""

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with section(name):
                return function(*args, **options)

        return call  # type: ignore[return-value]

    return wrap
