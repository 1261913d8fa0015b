"""Metrics for Prometheus: a page that rank 0 serves, and a file for node_exporter's textfile collector.

Both have the newest value of every entry of the rows, in the text format of Prometheus, version 0.0.4.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

from megads.monitor.log import LOG
from megads.monitor.trackers.gauges import PREFIX, Gauge, gauges_of, read_address
from megads.monitor.trackers.metrics_sink import Tracker, TrackerStart

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/metrics", "/")
WRITE_S = 1.0  # between two writes of the file
CLIENT_S = 5.0  # for a client to say what it wants


def open_tracker(start: TrackerStart) -> Prometheus:
    """Return what serves and writes the metrics of a run."""
    track = start.run.track
    name = start.run.name or start.run_dir.name
    file = Path(track.prometheus_file) if track.prometheus_file else None
    server = None
    if track.prometheus_address:
        server = Server(*read_address(track.prometheus_address))
        LOG.info("prometheus %s", server.url)
    return Prometheus(name, start.world_size, server, file)


class Prometheus(Tracker):
    """Keeps the newest value of every gauge of a run.

    Args:
        run: its name, a label of every metric.
        world_size: a metric of its own.
        server: that shows the metrics; None: none does.
        file: that has them; None: none.
    """

    name = "Prometheus"

    def __init__(self, run: str, world_size: int, server: Server | None = None, file: Path | None = None):
        self.run, self.server, self.file = run, server, file
        self.values: dict[tuple[str, str, str], Gauge] = {}
        self._write_at = 0.0
        self._set(Gauge("world_size", float(world_size)))
        self._set(Gauge("up", 1.0))
        self._publish(now=True)

    def write(self, row: Mapping[str, Any]) -> None:
        """Take the values of a row."""
        for gauge in gauges_of(row):
            self._set(gauge)
        self._set(Gauge("last_row_timestamp_seconds", time.time()))
        self._publish()

    def close(self) -> None:
        """Write the last values, with ``megads_up 0``, and end the server."""
        self._set(Gauge("up", 0.0))
        self._publish(now=True)
        if self.server is not None:
            self.server.close()

    def text(self) -> str:
        """Return all metrics, those of one name together."""
        label = f'run="{_escaped(self.run)}"'
        lines: list[str] = []
        before = ""
        for _, gauge in sorted(self.values.items()):
            name = f"{PREFIX}_{gauge.name}"
            if name != before:
                lines.append(f"# TYPE {name} gauge")
            more = f',{gauge.label}="{_escaped(gauge.label_value)}"' if gauge.label else ""
            lines.append(f"{name}{{{label}{more}}} {gauge.value!r}")
            before = name
        return "\n".join(lines) + "\n"

    def _set(self, gauge: Gauge) -> None:
        self.values[gauge.key] = gauge

    def _publish(self, *, now: bool = False) -> None:
        if self.server is not None:
            self.server.text = self.text()
        if self.file is not None and (now or time.monotonic() >= self._write_at):
            self._write_at = time.monotonic() + WRITE_S
            # Whole or not at all: the collector may read it at any time, and skips names that do not end in .prom.
            part = self.file.with_name(f".{self.file.name}.part")
            part.write_text(self.text(), encoding="utf8")
            os.replace(part, self.file)


class Server:
    """Serves one page to whoever reaches its port; it has no other.

    Raises:
        OSError: the port is taken, or the address is not one of this host.
    """

    def __init__(self, host: str, port: int):
        self.text = ""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = CLIENT_S

            def do_GET(self) -> None:
                body = owner.text.encode() if self.path.partition("?")[0] in PATHS else b""
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", CONTENT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *words: object) -> None:
                """Say nothing: a page that is read every 15 s is not news."""

        kind = AF_INET6 if ":" in host else AF_INET
        base = type("Base", (ThreadingHTTPServer,), {"address_family": kind, "daemon_threads": True})
        self._server: ThreadingHTTPServer = base((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, name="megads-prometheus", daemon=True).start()

    @property
    def url(self) -> str:
        """Return where the page is."""
        host, port = self._server.server_address[:2]
        shown = str(host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/metrics"

    def close(self) -> None:
        """End the server and free its port."""
        self._server.shutdown()
        self._server.server_close()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
