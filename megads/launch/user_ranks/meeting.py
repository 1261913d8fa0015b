"""How ranks that somebody else started find each other before one of them has decided anything.

Rank 0 listens. The others connect, say who they are, and wait for one message. The connection
is the watch: when rank 0 dies, everybody knows at once. Without torch.

On one host rank 0 listens on a socket of this host whose name follows from the launcher, and
the kernel says whose process the other end is. On several hosts it listens on a TCP port, and
a file in the working folder, for this user only, holds the address and a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import secrets
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megads.cluster.hosts import listen_everywhere, this_host
from megads.cluster.ranks import RankInfo
from megads.config.run_files import MEETING
from megads.errors import LaunchError
from megads.storage.reading import SMALL, parse_json, read_json
from megads.text.plural import plural

JOIN_S = 300.0  # for every rank to be there: thousands of them may load Python from one disk
GRACE_S = 10.0  # how much longer than rank 0 the others wait, so that rank 0 names who is missing
NOTE_S = 15.0  # without a rank, until rank 0 says for whom it waits
SEND_S = 10.0  # for a rank to take the message
_LINE = 65536  # longest message, bytes
_NAMED = 8  # missing ranks that are named
_PEER = struct.Struct("3i")  # pid, uid, gid

OF_ONE_LAUNCH = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    "DeepSpeed": ("MASTER_ADDR", "MASTER_PORT"),
    "Open MPI": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    "SLURM": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "PALS": ("PALS_APID",),
    "Flux": ("FLUX_JOB_ID",),
    "jsrun": ("LSB_JOBID", "JSM_NAMESPACE_ID"),
}
"""By launcher: variables that are the same in all ranks of one launch and differ from those of another one."""

_OF_A_JOB = ("PBS_JOBID", "SLURM_JOB_ID", "LSB_JOBID", "PMI_PORT")


def launch_key(info: RankInfo, env: Mapping[str, str], starter: Callable[[str], str]) -> str:
    """Return what tells this launch from others, the same on all of its ranks.

    Args:
        starter: returns the process on this host that started the ranks, given the variable of the rank.
    """
    found = [env[name] for name in OF_ONE_LAUNCH.get(info.family, ()) if env.get(name)]
    if not found and is_one_host(info):
        found = [starter("PMI_RANK" if info.family in ("MPICH", "PMI") else "")]
    if not found:
        found = [env.get(name, "") for name in _OF_A_JOB]
    text = "\n".join([info.family, str(info.world_size), *found])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_one_host(info: RankInfo) -> bool:
    """Return whether all ranks are known to be on this host."""
    return info.local_size == info.world_size


def starting_process(variable: str, pid: int | None = None, proc: Path = Path("/proc")) -> str:
    """Return the nearest process above this one that is no rank: the launcher, by its number and its start.

    Args:
        variable: that only ranks have; empty: the parent is the launcher.
        pid: where to begin; None: the parent of this process.
    """
    pid = os.getppid() if pid is None else pid
    while variable and pid > 1:
        try:
            names = [entry.partition(b"=")[0] for entry in (proc / f"{pid}/environ").read_bytes().split(b"\0")]
            if variable.encode() not in names:
                break
            pid = int((proc / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # another user's, as SLURM's
            break
    try:
        begun = (proc / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        begun = ""
    return f"{pid} {begun}"


@dataclass
class MeetingPoint:
    """Where the ranks of one launch meet.

    Args:
        key: what :func:`launch_key` returned.
        folder: that all hosts see; not used on one host.
        join_s: longest wait for another rank.
        note: takes a line while ranks are waited for.
    """

    info: RankInfo
    key: str
    folder: Path
    join_s: float = JOIN_S
    note: Callable[[str], None] = lambda line: None

    @property
    def file(self) -> Path:
        """The file that says where rank 0 listens, on several hosts."""
        return self.folder / f"{MEETING}{self.key}"

    def local_name(self) -> str:
        """Return the name of the socket on one host: of no file where the kernel can do that."""
        name = f"megads-{os.getuid()}-{self.key}"
        return f"\0{name}" if sys.platform == "linux" else os.path.join(tempfile.gettempdir(), name)


@dataclass
class Lead:
    """Rank 0's side: gathers the others and tells all of them the same.

    Raises:
        LaunchError: when it is made: another process is rank 0 of this launch, or the file cannot be written.
    """

    place: MeetingPoint
    peers: dict[int, tuple[socket.socket, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.secret = ""
        self._opened: list[socket.socket] = []
        self.listener = self._listen_here() if is_one_host(self.place.info) else self._listen_to_hosts()
        self.listener.setblocking(False)

    def _listen_here(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = self.place.local_name()
        if not name.startswith("\0"):
            with suppress(FileNotFoundError):
                os.unlink(name)
        try:
            listener.bind(name)
        except OSError:
            listener.close()
            raise LaunchError(
                f"duplicate rank 0 of {self.place.info.world_size} on {this_host()}: another process of "
                f"this launch is rank 0 too; {self.place.info.family} gives the ranks: its variables may be left from "
                "another launch"
            ) from None
        listener.listen(4096)
        return listener

    def _listen_to_hosts(self) -> socket.socket:
        listener = listen_everywhere(0)
        self.secret = secrets.token_hex(16)
        own = [this_host(), socket.getfqdn()]
        with suppress(OSError):
            own += [str(found[4][0]) for found in socket.getaddrinfo(this_host(), None, type=socket.SOCK_STREAM)]
        names = [name for name in dict.fromkeys(own) if not name.startswith(("127.", "::1", "localhost"))]
        address = {"names": names, "port": listener.getsockname()[1], "secret": self.secret}
        from megads.config.run_folder import write_whole

        write_whole(self.place.file, json.dumps(address), private=True)
        return listener

    def gather(self) -> list[str]:
        """Return the host of every rank, once all of them are there.

        Raises:
            LaunchError: some did not join before the timeout, two have the same rank, or one counts other ranks.
        """
        size, begun, noted = self.place.info.world_size, time.monotonic(), False
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ, bytearray())
            while len(self.peers) < size - 1:
                waited = time.monotonic() - begun
                if waited > self.place.join_s:
                    raise LaunchError(f"{self._missing()} did not join within {self.place.join_s:g} s{self._advice()}")
                if waited > NOTE_S and not noted:
                    noted = True
                    self.place.note(f"waiting for {self._missing()}{self._advice()}")
                for key, _ in selector.select(0.5):
                    if key.fileobj is self.listener:
                        self._accept(selector)
                    else:
                        self._read(selector, key)
        return [this_host(), *(self.peers[rank][1] for rank in range(1, size))]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with suppress(OSError):  # it is gone again
            peer, _ = self.listener.accept()
            self._opened.append(peer)
            if peer.family == socket.AF_UNIX and _user_of(peer) != os.getuid():
                peer.close()
                return
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ, bytearray())

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        peer, text = key.fileobj, key.data
        assert isinstance(peer, socket.socket)
        try:
            more = peer.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        text += more
        if more and b"\n" not in text and len(text) < 4096:
            return
        selector.unregister(peer)
        try:
            said = parse_json(bytes(text))
            rank, size, host = int(said["rank"]), int(said["size"]), str(said["host"])
            known = hmac.compare_digest(str(said["secret"]).encode(), self.secret.encode())
        except (ValueError, KeyError, TypeError, OverflowError):  # anybody may knock, and say anything
            known = False
        if not known:
            peer.close()
            return
        self._take(peer, rank, size, host)

    def _take(self, peer: socket.socket, rank: int, size: int, host: str) -> None:
        family, expected = self.place.info.family, self.place.info.world_size
        if size != expected or not 0 < rank < expected:
            raise LaunchError(f"{family} says {plural(expected, 'rank')} here, and rank {rank} of {size} on {host}")
        if rank in self.peers:
            raise LaunchError(
                f"duplicate rank {rank} of {size}, on {self.peers[rank][1]} and {host}; {family} gives the ranks: its "
                "variables may be left from another launch"
            )
        self.peers[rank] = peer, host

    def _missing(self) -> str:
        size = self.place.info.world_size
        missing = [rank for rank in range(1, size) if rank not in self.peers]
        names = ", ".join(map(str, missing[:_NAMED])) + (" ..." if len(missing) > _NAMED else "")
        return f"{len(missing)} of {plural(size, 'rank')} ({names})"

    def _advice(self) -> str:
        info = self.place.info
        where = "" if is_one_host(info) else f"; every host must see {self.place.folder} and reach {this_host()}"
        return f"{where}; {stale_advice(info)}"

    def send(self, message: Mapping[str, Any]) -> None:
        """Send every rank that is there what to do, and leave."""
        text = json.dumps(dict(message)).encode() + b"\n"
        assert len(text) <= _LINE, "a message is read in one piece"
        for peer, _ in self.peers.values():
            with suppress(OSError):  # it is gone; its launcher knows
                peer.settimeout(SEND_S)
                peer.sendall(text)
                peer.close()
        self.close()

    def close(self) -> None:
        """Stop listening; ranks that wait see the end of their connection."""
        for each in (self.listener, *self._opened):
            each.close()
        if not is_one_host(self.place.info):
            self.place.file.unlink(missing_ok=True)
        elif not self.place.local_name().startswith("\0"):
            with suppress(OSError):
                os.unlink(self.place.local_name())


def wait_for_message(place: MeetingPoint) -> dict[str, Any]:
    """Return what rank 0 informs every rank.

    Raises:
        LaunchError: rank 0 is not found in time.
        EOFError: rank 0 ended without a message; its own error says why.
    """
    until, wait_s = time.monotonic() + place.join_s + GRACE_S, 0.02
    while True:
        found = _connect_here(place) if is_one_host(place.info) else _connect_to_host(place)
        if found is not None:
            return _converse(place, *found)
        if time.monotonic() + wait_s > until:
            break
        # Thousands of ranks must not knock at the same moment.
        time.sleep(wait_s * random.uniform(0.5, 1.5))
        wait_s = min(2 * wait_s, 2.0)
    info = place.info
    where = "on this host" if is_one_host(info) else f"through {place.file}; every host must see that folder"
    raise LaunchError(
        f"rank {info.rank} of {info.world_size} on {this_host()} does not find rank 0 {where}; {stale_advice(info)}"
    )


def stale_advice(info: RankInfo) -> str:
    """Return what to do when ranks are missing that never were."""
    return f"if {info.family} did not start these ranks, the variables are left from another launch: unset them"


def _connect_here(place: MeetingPoint) -> tuple[socket.socket, str] | None:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(place.local_name())
        if _user_of(peer) == os.getuid():
            return peer, ""
    except OSError:
        pass
    peer.close()
    return None


def _connect_to_host(place: MeetingPoint) -> tuple[socket.socket, str] | None:
    try:
        os.listdir(place.folder)  # a network file system remembers that there was no file
        address = read_json(place.file, SMALL)
        names, port, secret = [str(name) for name in address["names"]], int(address["port"]), str(address["secret"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for name in names:
        with suppress(OSError, UnicodeError):
            peer = socket.create_connection((name, port), timeout=5.0)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return peer, secret
    return None


def _converse(place: MeetingPoint, peer: socket.socket, secret: str) -> dict[str, Any]:
    info = place.info
    hello = {"rank": info.rank, "size": info.world_size, "host": this_host(), "secret": secret}
    with peer:
        peer.settimeout(None)
        try:
            peer.sendall(json.dumps(hello).encode() + b"\n")
            with peer.makefile("rb") as answer:
                line = answer.readline(_LINE)
        except OSError:
            line = b""
    if not line.endswith(b"\n"):
        raise EOFError
    message: dict[str, Any] = json.loads(line)
    return message


def _user_of(peer: socket.socket) -> int:
    """Return the user at the other end; this one's where the kernel does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()
    given = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(given)[1])
