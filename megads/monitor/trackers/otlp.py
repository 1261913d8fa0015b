"""Metrics for OpenTelemetry: rows are posted to a collector in OTLP's JSON encoding, by a thread of their own.

Source: the OpenTelemetry Protocol specification 1.x, OTLP/HTTP with ``Content-Type: application/json``; 64-bit
integers are strings there. No library is needed for it, and none of its versions can disagree with another package.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from megads import __version__
from megads.monitor.log import LOG
from megads.monitor.trackers.gauges import PREFIX, Gauge, gauges_of, read_endpoint
from megads.monitor.trackers.metrics_sink import Tracker, TrackerStart
from megads.text.secrets import hidden

EVERY_S = 10.0  # between two posts
TIMEOUT_S = 10.0  # of a post
WAIT_S = 10.0  # at the end of a run, for what was not sent yet
MOST_ROWS = 5000  # that wait; then the oldest are dropped
AT_ONCE = 500  # rows of a post
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""Of the environment, as other programs read it: ``name=value,name=value``, percent-encoded."""


def open_tracker(start: TrackerStart) -> Otlp:
    """Return what posts the rows of a run."""
    about = {
        "service.name": PREFIX,
        "service.version": __version__,
        "service.instance.id": str(start.run_dir.absolute()),
        "megads.run": start.run.name or start.run_dir.name,
        "megads.world_size": str(start.world_size),
    }
    return Otlp(read_endpoint(start.run.track.otlp_endpoint), about, headers_of(start.env.get(HEADERS, "")))


def headers_of(text: str) -> dict[str, str]:
    """Return the headers that a variable names; what is no pair is skipped."""
    pairs = (part.partition("=") for part in text.split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, equals, value in pairs if equals and name.strip()}


class Otlp(Tracker):
    """Posts rows every :data:`EVERY_S` seconds. A collector that does not answer is asked again, and reported once.

    Args:
        url: of the collector, with its path.
        about: attributes of the run.
        headers: of every post.
        every_s: between two posts.
    """

    name = "OTLP"

    def __init__(self, url: str, about: Mapping[str, str], headers: Mapping[str, str], every_s: float = EVERY_S):
        self.url, self.about, self.headers, self.every_s = url, dict(about), dict(headers), every_s
        self.rows: deque[tuple[int, list[Gauge]]] = deque()
        self.dropped, self.problem = 0, ""
        self._lock, self._wake, self._closed = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="megads-otlp", daemon=True)
        self._thread.start()

    def write(self, row: Mapping[str, Any]) -> None:
        """Queue the values of a row, with the time of now."""
        gauges = gauges_of(row)
        with self._lock:
            if len(self.rows) >= MOST_ROWS:
                self.rows.popleft()
                self.dropped += 1
            self.rows.append((time.time_ns(), gauges))

    def close(self) -> None:
        """Have the rest sent at once."""
        self._closed = True
        self._wake.set()

    def settle(self) -> str:
        """Wait for the rest; return a line when something was not sent."""
        self._thread.join(WAIT_S)
        lost = len(self.rows) + self.dropped
        return f"OTLP: {lost} rows were not sent to {hidden(self.url)}: {self.problem or 'no answer'}" if lost else ""

    def _work(self) -> None:
        while True:
            self._wake.wait(self.every_s)
            closed = self._closed
            sent = True
            while sent and self.rows:
                sent = self._post_some()
            if closed:
                return

    def _post_some(self) -> bool:
        """Post the oldest rows; return whether the collector took them."""
        with self._lock:
            some = [self.rows.popleft() for _ in range(min(AT_ONCE, len(self.rows)))]
        body = json.dumps(message(some, self.about)).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self.url, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                answer.read(10_000)
        except (OSError, ValueError) as error:  # urllib's own are OSErrors
            self._failed(f"{type(error).__name__}: {error}", some)
            return False
        if self.problem:
            LOG.info("OTLP: the collector answers again")
            self.problem = ""
        return True

    def _failed(self, problem: str, some: list[tuple[int, list[Gauge]]]) -> None:
        with self._lock:
            room = max(0, MOST_ROWS - len(self.rows))
            kept = some[len(some) - room :] if room < len(some) else some
            self.dropped += len(some) - len(kept)
            self.rows.extendleft(reversed(kept))
        if not self.problem:
            LOG.warning(
                "OTLP: %s does not take metrics, the run continues and tries again: %s",
                hidden(self.url),
                hidden(problem),
            )
        self.problem = hidden(problem)


def message(rows: list[tuple[int, list[Gauge]]], about: Mapping[str, str]) -> dict[str, Any]:
    """Return the request of OTLP for rows with the unix time of each, in nanoseconds."""
    points: dict[str, list[dict[str, Any]]] = {}
    for at, gauges in rows:
        for gauge in gauges:
            labels = _attributes({gauge.label: gauge.label_value}) if gauge.label else []
            point = {"timeUnixNano": str(at), "asDouble": gauge.value, "attributes": labels}
            points.setdefault(f"{PREFIX}.{gauge.name}", []).append(point)
    metrics = [{"name": name, "gauge": {"dataPoints": each}} for name, each in points.items()]
    scope = {"scope": {"name": PREFIX, "version": __version__}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(about)}, "scopeMetrics": [scope]}]}


def _attributes(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items()]
