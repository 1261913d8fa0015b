"""Who sends the archive to whom: agents report here, and each gets a host that has it and is free.

A host that has the archive sends it to others at once, so the hosts that have it double with every round. No
host is waited for: one that fails is named, and those that it was to serve ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megads.cluster.hosts import listen_everywhere, this_host
from megads.launch.staging.agent import Server
from megads.launch.staging.archive import Archive
from megads.storage.reading import parse_json

FAN_OUT = 2
"""Hosts that one host sends to at a time; two halve what its network gives each."""
TRIES = 4
"""How often a host asks for the archive before it counts as failed."""
POLL_S = 0.2


@dataclass
class Host:
    """What an agent has reported."""

    name: str
    seconds: float = 0.0  # until it had everything
    reused: bool = False
    removed: int = 0
    source: str = ""  # the host that sent the archive; empty: this one
    problem: str = ""


@dataclass
class Report:
    """How staging went."""

    hosts: list[Host] = field(default_factory=list)
    missing: int = 0  # hosts that did not report
    seconds: float = 0.0

    @property
    def failed(self) -> list[Host]:
        """Return the hosts without what they should have."""
        return [host for host in self.hosts if host.problem]


@dataclass
class _Holder:
    """A host that can send the archive."""

    name: str
    address: str  # empty: of the registry
    port: int
    busy: int = 0


class Registry:
    """Serves the agents of one launch.

    Args:
        archive: what is staged; None: staged folders are removed.
        folder: of every host.
        num_hosts: whose agents are expected.
        secret: of the launch.
        timeout_s: without any news, after which hosts that are not done have failed.
        max_age_s: unused staged environments that are older are removed.
    """

    def __init__(
        self,
        archive: Archive | None,
        folder: str,
        num_hosts: int,
        secret: str,
        *,
        timeout_s: float = 300.0,
        max_age_s: float = 7 * 86400.0,
    ):
        self.archive, self.folder, self.num_hosts, self.secret = archive, folder, num_hosts, secret
        self.timeout_s, self.max_age_s = timeout_s, max_age_s
        self.report = Report()
        self._first = Server(archive.path, secret) if archive else None
        self._holders = [_Holder(this_host(), "", self._first.port)] if self._first else []
        self._changed = asyncio.Event()
        self._open: list[Host] = []
        self._ended = 0
        self._began = self._news = time.monotonic()

    def run(self, start: Callable[[int], Callable[[], bool]]) -> Report:
        """Call ``start(port)``, which starts the agents and returns whether they run, and serve them to their end."""
        return asyncio.run(self._run(start))

    async def _run(self, start: Callable[[int], Callable[[], bool]]) -> Report:
        listener = listen_everywhere(0)
        server = await asyncio.start_server(self._serve, sock=listener)
        if self._first:
            self._first.start()
        try:
            is_running = start(int(listener.getsockname()[1]))
            while self._ended < self.num_hosts:
                if time.monotonic() - self._news > self.timeout_s or (not is_running() and not self._open):
                    break
                await asyncio.sleep(POLL_S)
        finally:
            if self._first:
                self._first.close()
            server.close()
        for host in self._open:
            host.problem = f"no news for {self.timeout_s:.0f} s"
        self.report.missing = self.num_hosts - len(self.report.hosts)
        self.report.seconds = time.monotonic() - self._began
        return self.report

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _receive(reader)
        if not hmac.compare_digest(str(hello.get("secret", "")).encode(), self.secret.encode()):
            writer.close()
            return
        host = Host(str(hello["host"]))
        self.report.hosts.append(host)
        self._open.append(host)
        holder: _Holder | None = None
        source: _Holder | None = None
        _send(writer, self._job())
        tries = 0
        try:
            while message := await _receive(reader):
                self._news = time.monotonic()
                if source is not None:
                    self._release(source)
                state = message["state"]
                if state == "wants":
                    tries += 1
                    if tries > TRIES:
                        host.problem = str(message["problem"])
                        break
                    source = await self._free_holder(source if message["problem"] else None)
                    host.source = source.name if source.address else ""
                    _send(writer, {"address": source.address, "port": source.port})
                elif state == "fetched":
                    source = None
                    holder = _Holder(host.name, _address_of(writer), int(message["port"]))
                    self._holders.append(holder)
                    self._changed.set()
                else:
                    source = None
                    await self._end(host, message, holder)
                    _send(writer, {"state": "over"})
                    return
            host.problem = host.problem or "its agent ended; see its output above"
        finally:
            if source is not None:
                self._release(source)
            self._forget(holder)
            if host in self._open:
                self._open.remove(host)
                self._ended += 1
            with contextlib.suppress(OSError):
                writer.close()

    def _job(self) -> dict[str, Any]:
        if self.archive is None:
            return {"action": "clean", "folder": self.folder}
        about = {"name": self.archive.name, "digest": self.archive.digest, "num_bytes": self.archive.num_bytes}
        return {"action": "stage", "folder": self.folder, "max_age_s": self.max_age_s, **about}

    async def _end(self, host: Host, message: dict[str, Any], holder: _Holder | None) -> None:
        """Note how a host ended; let it go when nobody fetches from it any more."""
        host.seconds = time.monotonic() - self._began
        host.reused, host.removed = bool(message.get("reused")), int(message.get("removed", 0))
        host.problem = str(message.get("problem", ""))
        if host in self._open:
            self._open.remove(host)
            self._ended += 1
        # It still serves those who lack the archive.
        while holder is not None and not host.problem and self._ended < self.num_hosts:
            if not holder.busy and not self._open:
                break
            await asyncio.sleep(POLL_S)
        self._forget(holder)
        while holder is not None and holder.busy:
            await asyncio.sleep(POLL_S)

    async def _free_holder(self, failed: _Holder | None) -> _Holder:
        """Return a host that sends the archive now, another than ``failed`` where there is one."""
        while True:
            free = [each for each in self._holders if each.busy < FAN_OUT]
            others = [each for each in free if each is not failed]
            if others or (free and len(self._holders) == 1):
                found = min(others or free, key=lambda each: each.busy)
                found.busy += 1
                return found
            self._changed.clear()
            await self._changed.wait()

    def _release(self, holder: _Holder) -> None:
        holder.busy -= 1
        self._changed.set()

    def _forget(self, holder: _Holder | None) -> None:
        if holder in self._holders:
            self._holders.remove(holder)
            self._changed.set()


def _address_of(writer: asyncio.StreamWriter) -> str:
    """Return the address of a host, empty where it is this one: others know that by another address."""
    address = str(writer.get_extra_info("peername")[0]).removeprefix("::ffff:")
    return "" if address.startswith("127.") or address == "::1" else address


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next message; empty: the other side is gone, or is not an agent."""
    try:
        line = await reader.readline()
        found = parse_json(line) if line.endswith(b"\n") else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
