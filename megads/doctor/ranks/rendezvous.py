"""Where the ranks of a check meet: a TCP store at MASTER_ADDR, without waiting for everybody.

As in ``megads.comm.rendezvous`` rank 0 listens on the loopback interface where MASTER_ADDR is one, and every key begins
with the secret of the launch.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from megads.cluster.ranks import RankInfo
from megads.comm.rendezvous import listen
from megads.comm.timeout import store_prefix
from megads.errors import LaunchError

KEYS = "megads-doctor"


@dataclass(frozen=True)
class Meeting:
    """Two connections to one store: one for the protocol, one for groups, because each serves one thread at a time.

    ``resolve_s`` and ``connect_s`` are how long the address took to resolve and the store to answer.
    """

    store: dist.Store
    groups: dist.Store
    address: str
    resolve_s: float = 0.0
    connect_s: float = 0.0


def meet(info: RankInfo, env: Mapping[str, str], limit_s: float) -> Meeting:
    """Return this rank's connections to the store of ``MASTER_ADDR`` and ``MASTER_PORT``, which rank 0 holds.

    Under torchrun its agent holds the store, and says so.

    Raises:
        LaunchError: no address, one that does not resolve here, a port that is taken, or nobody there.
    """
    if info.world_size == 1:
        alone = dist.HashStore()
        return Meeting(dist.PrefixStore(KEYS, alone), dist.PrefixStore("groups", alone), "no address")
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise LaunchError(
            f"MASTER_ADDR={host!r} MASTER_PORT={port!r} must name the rendezvous address; use megads doctor"
        )
    started = time.monotonic()
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"MASTER_ADDR={host} does not resolve on this host: {error.strerror or error}") from None
    resolved = time.monotonic()
    holds = info.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if not holds:
            _wait_for_listener(host, int(port), limit_s)
        # Rank 0 need not be able to reach itself by the name that others know.
        stores = [_serve(host, int(port), limit_s) if holds else _connect(host, int(port), limit_s)]
        stores.append(_connect("127.0.0.1" if holds else host, int(port), limit_s))
    except (OSError, RuntimeError, ValueError) as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        if holds:
            raise LaunchError(f"rank 0 cannot listen on port {port}, start megads doctor again: {text:.200}") from None
        raise LaunchError(
            f"no answer at MASTER_ADDR={host} ({found[0][4][0]}) port {port} within {limit_s:g} s: rank 0 has not "
            f"started there, or a firewall is between ({text:.200})"
        ) from None
    return Meeting(
        dist.PrefixStore(f"{store_prefix(env)}/{KEYS}", stores[0]),
        dist.PrefixStore(f"{store_prefix(env)}/groups", stores[1]),
        f"{host}:{port}", resolved - started, time.monotonic() - resolved,
    )  # fmt: skip


def _serve(host: str, port: int, limit_s: float) -> dist.Store:
    listener = listen(host, port)
    try:
        return dist.TCPStore(
            "127.0.0.1", port, None, True, timedelta(seconds=limit_s), wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
    finally:
        listener.close()


def _connect(host: str, port: int, limit_s: float) -> dist.Store:
    return dist.TCPStore(host, port, None, False, timedelta(seconds=limit_s), wait_for_workers=False)


def _wait_for_listener(host: str, port: int, limit_s: float) -> None:
    """Wait until somebody listens; torch would print pages while it tries."""
    until, pause = time.monotonic() + limit_s, 0.05
    while True:
        try:
            socket.create_connection((host, port), timeout=max(1.0, min(10.0, until - time.monotonic()))).close()
            return
        except OSError:
            if time.monotonic() + pause > until:
                raise
        # Thousands of ranks must not knock at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, 5.0)
