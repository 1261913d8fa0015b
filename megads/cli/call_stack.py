"""Room for the calls of a command, so that none of them waits for the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def with_room(function: Callable[[], _Result]) -> _Result:
    """Return ``function()``, with half a MiB of Python's own call stack ahead.

    Python 3.11 and later keep the frames of calls in blocks of 16 KiB, which they map when a call crosses the end of
    one and unmap when it returns. A loop that happens to call across that end pays two system calls each time: 3,200
    of them were 60 ms of a dry run of 0.3 s. This function's own frame is so large that its block has room for
    all that follows; what is not used of it is never touched.
    """
    return function()


with_room.__code__ = with_room.__code__.replace(co_stacksize=1 << 16)
