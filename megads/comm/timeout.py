"""How long ranks wait for each other, and the second way to the store when one waits for too long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

from megads.cluster.ranks import TOKEN

FIRST_TIMES = 2.0
"""The first step, save and validation, and the set-up, may take this many times ``launch.timeout_s``."""

MARGIN_S = 60.0
"""For the watchdog to report and to end the run, before torch's own time-out does so without a report."""


def group_timeout_s(timeout_s: float) -> float:
    """Return the time-out of torch's process groups, in seconds, for ``launch.timeout_s``.

    It is longer than the longest that the watchdog (``megads.train.fault.watchdog``) allows a phase
    whose length is not known yet, so that the watchdog comes first and says who is missing.
    """
    return FIRST_TIMES * timeout_s + MARGIN_S


def connect_again(env: Mapping[str, str], rank: int, timeout_s: float = 5.0) -> dist.Store:
    """Return a connection of its own to the store of the run, with the names of ``megads.comm.rendezvous``.

    The connection that torch has may be held by a main thread that waits in it.

    Raises:
        RuntimeError: the store does not answer in ``timeout_s``.
        KeyError: the ranks have no address to meet.
    """
    served_here = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    host = "127.0.0.1" if served_here else env["MASTER_ADDR"]
    store = dist.TCPStore(
        host, int(env["MASTER_PORT"]), None, False, timedelta(seconds=timeout_s), wait_for_workers=False
    )
    return dist.PrefixStore(store_prefix(env), store)


def store_prefix(env: Mapping[str, str]) -> str:
    """Return what every key of the run begins with in its store: this launch's secret, and its attempt.

    Who does not know it can neither read nor replace what ranks exchange, short of
    listening on the network. A torchrun that starts its ranks again may keep its store.
    """
    return f"megads/{env.get(TOKEN, '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
