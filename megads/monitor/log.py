"""Who speaks: rank 0 in plain lines, the others only when something is wrong."""

from __future__ import annotations

import logging
import socket
import sys
import traceback

LOG = logging.getLogger("megads")


def start_log(rank: int, level: str) -> logging.Logger:
    """Set up the run's log on stderr and return it.

    Args:
        rank: rank 0 prints bare lines at ``level``; the others print warnings and errors,
            each with its rank and host.
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"[{where(rank)}] %(message)s"))
    LOG.handlers = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper() if rank == 0 else max(logging.WARNING, logging.getLevelName(level.upper())))
    return LOG


def where(rank: int) -> str:
    """Return ``rank R host H``."""
    return f"rank {rank} host {socket.gethostname()}"


def failure_text(rank: int, error: BaseException) -> str:
    """Return ``error``'s traceback with rank and host before every line, for one write to stderr."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "".join(f"[{where(rank)}] {line}\n" for line in lines)
