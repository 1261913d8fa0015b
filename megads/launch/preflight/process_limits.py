"""Limits of this process that a large run meets."""

from __future__ import annotations

import resource

from megads.errors import LaunchError

OWN_FILES = 256
"""Open files of rank 0 besides its connections: libraries, data, logs."""

PER_RANK = 2
"""Connections of every rank to rank 0: the store's, and the watchdog's while it asks."""


def raise_open_files() -> int:
    """Raise this process's limit of open files, which its children inherit, as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft >= hard:
        return soft
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 2**20)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a system with a lower limit of its own, as macOS
        return soft
    return wanted


def check_open_files(world_size: int) -> None:
    """Refuse a run whose rank 0 could not hold a connection to every rank.

    Raises:
        LaunchError: the limit of open files is lower than the run needs.
    """
    limit, needed = raise_open_files(), PER_RANK * world_size + OWN_FILES
    if limit < needed:
        raise LaunchError(
            f"{world_size} ranks join at rank 0, which needs {needed} open files, and the limit here is {limit} "
            f"(`ulimit -Hn`); raise it to {needed}, or use at most {(limit - OWN_FILES) // PER_RANK} ranks"
        )
