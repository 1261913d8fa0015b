"""Helper processes end with the one that started them, whatever ended that."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the system end this process when its parent ends; call it first thing in the helper.

    Args:
        parent: number of the process that started this one. Its thread that did must live as long as it does.
    """
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
