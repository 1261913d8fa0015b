"""Where the ranks of a run meet: decided once, by the launcher, and given to every rank."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.errors import LaunchError

LOWEST_PORT, HIGHEST_PORT = 10000, 65000
_SPAN = 12000  # ports below the kernel's own range are enough, and further from well-known services
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL = (32768, 60999)


def name_resolves(name: str) -> bool:
    """Return whether this host finds an address for ``name``."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def master_address(
    hosts: Sequence[str],
    facts: Facts,
    resolves: Callable[[str], bool] = name_resolves,
    further: Callable[[str], Iterable[str]] = lambda host: (),
) -> str:
    """Return the name or address under which all ranks reach the first of ``hosts``.

    Ranks of one host meet on its loopback, which also works where the host's own name does
    not resolve. Otherwise the first that resolves here of: the names on the fast network
    (``facts.fabric``), the plain name, the name with this host's domain, ``further`` names.

    Args:
        hosts: that run ranks, the first of them rank 0.
        further: names or addresses that the scheduler knows for a host; asked last.

    Raises:
        LaunchError: none of the names resolves.
    """
    if len(hosts) == 1:
        return "127.0.0.1"
    tried = []
    for make in (lambda host: _names(host, facts), further):
        for name in make(hosts[0]):
            if name not in tried and resolves(name):
                return name
            tried.append(name)
    raise LaunchError(
        f"{', '.join(dict.fromkeys(tried))}: no such name resolves on {this_host()}, and ranks on other hosts "
        "join there; use names that resolve in HOSTFILE, or the machine's in `facts: fabric:` of its envs file"
    )


def _names(host: str, facts: Facts) -> Iterable[str]:
    short, _, domain = host.partition(".")
    yield from (pattern.replace("{host}", short) for pattern in facts.fabric)
    yield host
    own_domain = socket.getfqdn().partition(".")[2]
    if own_domain and not domain:
        yield f"{short}.{own_domain}"


def ephemeral_ports(path: Path = _EPHEMERAL) -> tuple[int, int]:
    """Return the first and last port that the kernel gives to outgoing connections."""
    try:
        low, high = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return _USUAL_EPHEMERAL
    return low, high


def port_is_free(port: int) -> bool:
    """Return whether nobody on this host listens on ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def master_port(
    job_id: str,
    step: str,
    attempt: int,
    *,
    is_free: Callable[[int], bool] | None = None,
    ephemeral: tuple[int, int] | None = None,
) -> int:
    """Return the TCP port that rank 0 listens on.

    The same job, step and attempt give the same port; another attempt another one, so that
    it does not meet what a crash left on the old port. The port lies outside the range of
    outgoing connections, one of which could hold it by chance.

    Args:
        job_id: of the scheduler, or anything that no other run on these hosts has.
        step: anything that other launches in the same job do not have.
        attempt: 0, 1, ... of the restarts of this launch.
        is_free: whether the port can be used; only the first host itself can tell. None: not known.
        ephemeral: first and last port of outgoing connections; None: as this kernel says.

    Raises:
        LaunchError: no port is free.
    """
    low, high = ephemeral or ephemeral_ports()
    below, above = range(max(LOWEST_PORT, low - _SPAN), low), range(max(high + 1, LOWEST_PORT), HIGHEST_PORT)
    ports = below or above or range(LOWEST_PORT, HIGHEST_PORT)
    digest = hashlib.sha256(f"{job_id}/{step}/{attempt}".encode()).digest()
    first = int.from_bytes(digest[:8], "big") % len(ports)
    for number in range(len(ports)):
        port = ports[(first + number) % len(ports)]
        if is_free is None or is_free(port):
            return port
    raise LaunchError(f"no TCP port from {ports[0]} to {ports[-1]} is free on this host; end programs that hold them")
