"""Names of hosts, and the lists and files in which schedulers give them."""

from __future__ import annotations

import itertools
import math
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from megads.errors import LaunchError

MAX_HOSTS = 1_000_000
"""More than any cluster has: a list that says so is a slip, and must not fill the memory."""

_HOST_LIST = "it should be like n[1-3,7],gpu[01-02]-ib,login"
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_BRACKETED = re.compile(r"\[([^]]+)\](?::(.*))?")
_SLOTS = re.compile(r"[1-9]\d{0,7}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*")


def this_host() -> str:
    """Return this host's name as the kernel knows it."""
    return socket.gethostname()


def is_this_host(name: str) -> bool:
    """Return whether ``name`` means this host; domains do not count, schedulers drop or add them."""
    return name in ("localhost", "127.0.0.1", "::1") or name.split(".")[0] == this_host().split(".")[0]


def listen_everywhere(port: int) -> socket.socket:
    """Return a socket that listens on ``port`` of every interface, 0: on a free port; hosts may have IPv6 only.

    Raises:
        OSError: the port is in use, or cannot be had.
    """
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=dual)


def parse_hosts(text: str, origin: str = "host list") -> tuple[str, ...]:
    """Return the hosts of a list as SLURM and Flux write it, each once, in the list's order.

    A name may have several brackets, and text after them; numbers keep their zeros:
    ``rack[0-1]n[08-10],login`` is rack0n08, rack0n09, rack0n10, rack1n08 ... login.

    Args:
        origin: where it came from, for the error message.

    Raises:
        LaunchError: brackets that do not match, a range that is none, or no host at all.
    """
    hosts: dict[str, None] = {}
    for name in _split(text, origin):
        pieces = [_piece(piece, text, origin) for piece in re.split(r"(\[[^\]]*\])", name) if piece]
        if len(hosts) + math.prod(map(len, pieces)) > MAX_HOSTS:
            raise _wrong(text, origin, f"{name!r} stands for more than {MAX_HOSTS} hosts")
        hosts.update(dict.fromkeys("".join(parts) for parts in itertools.product(*pieces) if parts))
    if not hosts:
        raise LaunchError(f"{origin}={text!r}: names no host; {_HOST_LIST}")
    return tuple(hosts)


def _split(text: str, origin: str) -> Iterator[str]:
    """Yield the parts between the commas that are outside of brackets."""
    start = depth = 0
    for index, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise _wrong(text, origin, "its brackets do not match")
        if letter == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    if depth:
        raise _wrong(text, origin, "its brackets do not match")
    yield text[start:].strip()


def _piece(piece: str, text: str, origin: str) -> list[str]:
    """Return what may stand in the place of a bracket, or of the text between brackets."""
    if not piece.startswith("["):
        if re.search(r"\s", piece):
            raise _wrong(text, origin, f"{piece!r} is not a host name")
        return [piece]
    found: list[str] = []
    for part in piece[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise _wrong(text, origin, f"{part!r} is not a range of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if high - low >= MAX_HOSTS:
            raise _wrong(text, origin, f"{part!r} stands for more than {MAX_HOSTS} hosts")
        found += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return found


def _wrong(text: str, origin: str, why: str) -> LaunchError:
    return LaunchError(f"{origin}={text!r}: {why}; {_HOST_LIST}")


def read_host_file(path: Path, origin: str) -> tuple[str, ...]:
    """Return the hosts listed in ``path``, each once, in the order first seen.

    Raises:
        LaunchError: as :func:`count_slots`.
    """
    return tuple(count_slots(path, origin))


def count_slots(path: Path, origin: str) -> dict[str, int]:
    """Return the ranks that ``path`` gives to each host, in the order first seen.

    Lines are ``HOST``, ``HOST slots=N`` (Open MPI, DeepSpeed) or ``HOST:N`` (MPICH, an IPv6
    address in brackets before it); what else a line says is not read, blank lines and ``#``
    comments are skipped. PBS repeats a host once for each MPI process of its chunks, so
    lines of one host add up.

    Args:
        origin: where its name came from, for the error message.

    Raises:
        LaunchError: when the file cannot be read, lists nothing, or gives what is no host or number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise LaunchError(f"{origin}={path}: {reason}; it should have one host per line") from None
    slots: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if words:
            host, count = _host_and_slots(words)
            if not (_HOST.fullmatch(host) and _SLOTS.fullmatch(count)):
                raise LaunchError(f"{origin}={path}:{number}: expected 'HOST [slots=N]', got {line!r:.200}")
            slots[host] += int(count)
    if not slots:
        raise LaunchError(f"{origin}={path}: lists no host; it should have one host per line")
    return dict(slots)


def _host_and_slots(words: list[str]) -> tuple[str, str]:
    named = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
    usual = named[0] if named else "1"
    if bracketed := _BRACKETED.fullmatch(words[0]):
        return bracketed[1], usual if bracketed[2] is None else bracketed[2]
    host, colon, count = words[0].partition(":")
    if colon and ":" not in count:  # more colons are an address of IPv6
        return host, count
    return words[0], usual


def lsf_hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of an LSF job on which ranks may run, each once.

    Read are, whichever is there first: the files ``LSB_DJOB_RANKFILE`` and
    ``LSB_DJOB_HOSTFILE`` (a host once per slot), ``LSB_MCPU_HOSTS`` (``a 1 b 42``) and
    ``LSB_HOSTS`` (``a b b``). Where jsrun starts the ranks, the first host is the node of
    the batch script: it has one slot and every other host has more, and is skipped.

    Raises:
        LaunchError: when none of them is set, or what is set cannot be read.
    """
    slots = _lsf_slots(env)
    first, *others = slots
    if others and slots[first] == 1 and all(slots[host] > 1 for host in others):
        del slots[first]
    return tuple(slots)


def _lsf_slots(env: Mapping[str, str]) -> dict[str, int]:
    for name in ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE"):
        # LSF may name a file that only the first host can see; the lists below then tell as well.
        if env.get(name) and (Path(env[name]).is_file() or not (env.get("LSB_MCPU_HOSTS") or env.get("LSB_HOSTS"))):
            return count_slots(Path(env[name]), name)
    if words := env.get("LSB_MCPU_HOSTS", "").split():
        if len(words) % 2 or not all(count.isdecimal() for count in words[1::2]):
            raise LaunchError(f"LSB_MCPU_HOSTS={env['LSB_MCPU_HOSTS']!r} is not of the form 'HOST SLOTS HOST SLOTS'")
        slots: Counter[str] = Counter()
        for host, count in zip(words[::2], words[1::2], strict=True):
            slots[host] += int(count)
        return dict(slots)
    if words := env.get("LSB_HOSTS", "").split():
        return dict(Counter(words))
    raise LaunchError(
        "LSF lists no hosts: none of LSB_DJOB_RANKFILE, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and LSB_HOSTS is set; "
        "start the run inside a job, or set HOSTFILE"
    )
