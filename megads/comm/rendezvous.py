"""Where the ranks of a run meet, and which place each of them has on its host.

Everything goes through one store, which ``torch.distributed`` then uses as well: one port,
and a rank that does not come is named before any collective waits for it.
"""

from __future__ import annotations

import errno
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from megads.cluster.hosts import listen_everywhere, this_host
from megads.cluster.ranks import TOKEN, UNKNOWN, RankInfo
from megads.errors import LaunchError
from megads.text.plural import plural

GRACE_S = 10.0
"""How much longer than rank 0 the others wait, so that it is rank 0 who says which rank is missing."""

BLOCK = 1000
"""Ranks of one request to the store."""

NAMES = 8
"""More missing ranks than this are counted, not named."""


def meet(info: RankInfo, timeout_s: float, env: Mapping[str, str]) -> dist.Store:
    """Return a store that all ranks share; every one of them is there when it returns.

    Rank 0 listens on ``MASTER_PORT`` and the others come to ``MASTER_ADDR``; under torchrun its
    agent listens already. Rank 0 listens on the loopback interface where ``MASTER_ADDR`` is
    one, else on all of them. Every key begins with the launch's secret. One rank alone opens no port.

    Raises:
        LaunchError: no address, one that does not resolve, a port in use, ranks that do not
            come (rank 0 names them), or two processes with one rank.
    """
    if info.world_size == 1:
        return dist.HashStore()
    host, port = _address(info, env)
    until = time.monotonic() + timeout_s
    if holds_store(info.rank, env):
        store = _serve(host, port, timeout_s)
    else:
        _wait_for_rank_0(info, host, port, until)
        store = connect_store(host, port, timeout_s + (GRACE_S if info.rank else 0))
    store = dist.PrefixStore(store_prefix(env), store)
    arrive(info, store, until)
    return store


def connect_again(env: Mapping[str, str], rank: int, timeout_s: float = 5.0) -> dist.Store:
    """Return a connection of its own to the store of the run, with the names of :func:`meet`.

    The connection that torch has may be held by a main thread that waits in it.

    Raises:
        RuntimeError: the store does not answer in ``timeout_s``.
        KeyError: the ranks have no address to meet.
    """
    host = "127.0.0.1" if holds_store(rank, env) else env["MASTER_ADDR"]
    store = connect_store(host, int(env["MASTER_PORT"]), timeout_s)
    return dist.PrefixStore(store_prefix(env), store)


def store_listens(env: Mapping[str, str], rank: int, timeout_s: float = 2.0) -> bool:
    """Return whether somebody listens where the store of the run is; torch prints pages where nobody does."""
    host = "127.0.0.1" if holds_store(rank, env) else env["MASTER_ADDR"]
    try:
        socket.create_connection((host, int(env["MASTER_PORT"])), timeout_s).close()
    except OSError:
        return False
    return True


def store_prefix(env: Mapping[str, str]) -> str:
    """Return what every key of the run begins with in its store: this launch's secret, and its attempt.

    Who does not know it can neither read nor replace what ranks exchange, short of
    listening on the network. A torchrun that starts its ranks again may keep its store.
    """
    return f"megads/{env.get(TOKEN, '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def find_local(info: RankInfo, store: dist.Store, *, host: str = "") -> RankInfo:
    """Return ``info`` with the local rank and size that its launcher did not give.

    Ranks exchange the names of their hosts; those on one host count in the order of their
    ranks. Where the launcher gave both numbers nothing is sent: all ranks of a launch know
    the same, so either all of them call this to exchange or none does. ``host`` is this host's name;
    empty: as the kernel says.
    """
    if info.local_rank != UNKNOWN and info.local_size:
        return info
    store.set(f"at/{info.rank}", host or host_identity())
    if info.rank == 0:
        _give_places(store, info.world_size)
    local_rank, local_size = (int(number) for number in store.get(f"place/{info.rank}").split())
    # A local rank that the launcher gave is the one its binding of cores and devices follows.
    local_rank = local_rank if info.local_rank == UNKNOWN else info.local_rank
    return replace(info, local_rank=local_rank, local_size=local_size)


def _places(hosts: list[str]) -> list[tuple[int, int]]:
    """Return (local rank, local size) of every rank, given the hosts by rank."""
    sizes, seen = Counter(hosts), Counter[str]()
    places = []
    for host in hosts:
        places.append((seen[host], sizes[host]))
        seen[host] += 1
    return places


def _give_places(store: dist.Store, world_size: int) -> None:
    """Send every rank its place, in blocks: one question for each of 10,000 ranks would take seconds."""
    blocks = [range(first, min(first + BLOCK, world_size)) for first in range(0, world_size, BLOCK)]
    hosts = [host.decode() for ranks in blocks for host in store.multi_get([f"at/{rank}" for rank in ranks])]
    places = _places(hosts)
    for ranks in blocks:
        names = [f"place/{rank}" for rank in ranks]
        store.multi_set(names, ["{} {}".format(*places[rank]) for rank in ranks])  # type: ignore[attr-defined]


def host_identity() -> str:
    """Return what distinguishes this host from others: images of one cluster may share a host name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{this_host()} {boot.read_text().strip() if boot.exists() else ''}"


def _address(info: RankInfo, env: Mapping[str, str]) -> tuple[str, int]:
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not (host and port):
        raise LaunchError(
            f"rank {info.rank} of {info.world_size}: MASTER_ADDR and MASTER_PORT must name the rendezvous address; "
            "start the run with megads train or megads launch, which set them"
        )
    if not (port.isdigit() and 0 < int(port) < 2**16):
        raise LaunchError(f"MASTER_PORT={port} is not a port; use a number from 1 to 65535")
    return host, int(port)


def holds_store(rank: int, env: Mapping[str, str]) -> bool:
    """Return whether this rank is the one that holds the store; under torchrun its agent does, and says so."""
    return rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _serve(host: str, port: int, timeout_s: float) -> dist.Store:
    try:
        return serve_store(host, port, timeout_s)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise LaunchError(f"rank 0 cannot listen on port {port} of {this_host()}: {error.strerror}") from None
        raise LaunchError(
            f"MASTER_PORT={port} is in use on {this_host()}, by another program or by a duplicate "
            "rank 0; restart, with another MASTER_PORT if it is set by hand"
        ) from None


def serve_store(host: str, port: int, timeout_s: float) -> dist.Store:
    """Return a new store that listens on ``port`` as :func:`listen` does.

    Raises:
        OSError: as :func:`listen`.
    """
    listener = listen(host, port)
    try:
        # Not MASTER_ADDR: a host need not be able to reach itself by the name others know it by.
        return dist.TCPStore(
            "127.0.0.1", port, None, True, timedelta(seconds=timeout_s), wait_for_workers=False, multi_tenant=True,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
    finally:
        listener.close()


def connect_store(host: str, port: int, timeout_s: float) -> dist.Store:
    """Return a connection to the store of another process.

    Raises:
        RuntimeError: it does not answer in ``timeout_s``.
    """
    return dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``port``, of the loopback interface only where ``host`` is one.

    Raises:
        OSError: the port is in use, or cannot be had.
    """
    return socket.create_server((host, port), backlog=4096) if is_loopback(host) else listen_everywhere(port)


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address of the host itself, IPv4."""
    return host == "localhost" or host.startswith("127.")


def _wait_for_rank_0(info: RankInfo, host: str, port: int, until: float) -> None:
    try:
        wait_for_listener(host, port, until)
    except OSError as error:
        raise LaunchError(
            f"rank {info.rank} of {info.world_size} on {this_host()} does not reach rank 0 at "
            f"MASTER_ADDR={host} MASTER_PORT={port}: {error.strerror or error}; MASTER_ADDR should be a name or "
            "address of rank 0's host that every host can reach"
        ) from None


def wait_for_listener(host: str, port: int, until: float) -> None:
    """Wait until somebody listens; torch would print pages while it tries.

    Raises:
        OSError: nobody does at the time ``until`` of :func:`time.monotonic`, or ``host`` does not resolve for a while.
    """
    wait_s = 0.05
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(1.0, min(10.0, until - time.monotonic()))) as knock:
                if knock.getsockname() == knock.getpeername():  # the kernel gave the knock the very port it knocks at
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            return
        except OSError as error:
            if time.monotonic() + wait_s > until or (isinstance(error, socket.gaierror) and wait_s > 1):
                raise
        # Thousands of ranks must not knock at the same moment.
        time.sleep(wait_s * random.uniform(0.5, 1.5))
        wait_s = min(2 * wait_s, 5.0)


def arrive(info: RankInfo, store: dist.Store, until: float) -> None:
    """Report that this rank is there, and wait until all are: a counter says so, and the last rank informs everybody.

    How often a rank asks the store does not depend on the number of ranks.
    """
    if store.add(f"claim/{info.rank}", 1) > 1:
        other = store.get(f"host/{info.rank}").decode()
        raise LaunchError(
            f"duplicate rank {info.rank} of {info.world_size}, on {other} and {this_host()}; "
            f"{info.family} gives the ranks: its variables may be left from another launch"
        )
    store.set(f"host/{info.rank}", this_host())
    if store.add("arrived", 1) == info.world_size:
        store.set("all", "here")
    if info.rank == 0:
        _wait_for_others(info, store, until)
        return
    try:
        store.wait(["all"])
    except RuntimeError as error:
        raise LaunchError(
            f"rank {info.rank} of {info.world_size} on {this_host()} timed out waiting for other ranks: {_line(error)}"
        ) from None


def _wait_for_others(info: RankInfo, store: dist.Store, until: float) -> None:
    """Ask whether all ranks are there, less and less often; torch prints pages when a wait of its own times out."""
    wait_s = 0.01
    while not store.check(["all"]):
        if time.monotonic() > until:
            # One that comes at this moment is there: nobody is missing then.
            if missing := missing_ranks(store, "host", info.world_size):
                raise LaunchError(_who_is_missing(info, store, missing))
            return
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 0.5)


def missing_ranks(store: dist.Store, key: str, world_size: int) -> list[int]:
    """Return the ranks whose ``key/RANK`` is not in the store.

    It asks for blocks of ranks and halves those that lack one, so that few missing ranks of many are found quickly.
    """
    blocks = _by_presence(store, key, range(world_size))
    return [rank for ranks, is_there in blocks for rank in ranks if not is_there]


def read_numbers(store: dist.Store, key: str, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield each of ``numbers`` whose ``key/NUMBER`` is in the store, with its value; it asks for blocks of them."""
    for block, is_there in _by_presence(store, key, numbers):
        if is_there:
            values = store.multi_get([f"{key}/{number}" for number in block])
            yield from zip(block, (value.decode() for value in values), strict=True)


def _by_presence(store: dist.Store, key: str, numbers: Sequence[int]) -> Iterator[tuple[Sequence[int], bool]]:
    """Yield ``numbers`` in blocks, in order, and whether all of a block are in the store; else it has one number."""
    blocks = [numbers[first : first + BLOCK] for first in range(0, len(numbers), BLOCK)][::-1]
    while blocks:
        block = blocks.pop()
        if store.check([f"{key}/{number}" for number in block]):
            yield block, True
        elif len(block) == 1:
            yield block, False
        else:
            half = len(block) // 2
            blocks += [block[half:], block[:half]]


def _who_is_missing(info: RankInfo, store: dist.Store, missing: list[int]) -> str:
    gone = set(missing)
    came = [f"host/{rank}" for rank in range(info.world_size) if rank not in gone]
    there = {
        host.decode() for first in range(0, len(came), BLOCK) for host in store.multi_get(came[first : first + BLOCK])
    }
    names = ", ".join(str(rank) for rank in missing[:NAMES]) + (" ..." if len(missing) > NAMES else "")
    hosts = ", ".join(sorted(there)[:NAMES]) + (" ..." if len(there) > NAMES else "")
    return (
        f"{len(missing)} of {plural(info.world_size, 'rank')} did not join before the timeout: {names}; "
        f"those that joined are on {hosts}; see what the missing ones printed, or raise DIST_TIMEOUT"
    )


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
