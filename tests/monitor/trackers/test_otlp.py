"""What a collector of OpenTelemetry gets, also one that was not there at first."""

from __future__ import annotations

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from megads.monitor.trackers import otlp as module
from megads.monitor.trackers.gauges import gauges_of
from megads.monitor.trackers.otlp import Otlp, headers_of, message
from tests.monitor.trackers.rows import step, validation


class Collector:
    """Keeps what it is sent; answers with ``status``."""

    def __init__(self):
        self.requests, self.status = [], 200
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = owner.status
                owner.requests.append((self.path, dict(self.headers), json.loads(body), status))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"

    def taken(self):
        """Return the values that it accepted, by name of the metric, in the order of their arrival."""
        found = {}
        for _, _, body, status in self.requests:
            if status == 200:
                for metric in body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]:
                    values = [point["asDouble"] for point in metric["gauge"]["dataPoints"]]
                    found.setdefault(metric["name"], []).extend(values)
        return found

    def wait(self, number: int) -> None:
        until = time.monotonic() + 120
        while len(self.requests) < number:
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.fixture
def collector(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TIMEOUT_S", "WAIT_S"):
        monkeypatch.setattr(module, name, 120.0)  # a busy host
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_every_row_arrives_once_with_its_time_and_what_the_run_is(collector):
    before = time.time_ns()
    tracker = Otlp(collector.url, {"megads.run": "7B"}, {"X-Key": "secret"}, every_s=0.05)
    tracker.write(step(1))
    collector.wait(1)
    for iteration in range(2, 30):
        tracker.write(step(iteration))
    tracker.close()
    assert tracker.settle() == ""
    assert collector.taken()["megads.iteration"] == [float(each) for each in range(1, 30)]
    assert collector.taken()["megads.lm_loss"] == [step(each)["lm_loss"] for each in range(1, 30)]
    path, headers, body, _ = collector.requests[0]
    assert (path, headers["X-Key"], headers["Content-Type"]) == ("/v1/metrics", "secret", "application/json")
    resource = body["resourceMetrics"][0]
    assert resource["resource"]["attributes"] == [{"key": "megads.run", "value": {"stringValue": "7B"}}]
    point = resource["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"][0]
    assert before <= int(point["timeUnixNano"]) <= time.time_ns()


def test_a_collector_that_refuses_is_asked_again_and_nothing_is_lost(collector, caplog):
    caplog.set_level(logging.INFO, logger="megads")
    collector.status = 503
    tracker = Otlp(collector.url, {}, {}, every_s=0.05)
    for iteration in range(1, 5):
        tracker.write(step(iteration))
    collector.wait(3)
    collector.status = 200
    tracker.close()
    assert tracker.settle() == ""
    assert collector.taken()["megads.iteration"] == [1.0, 2.0, 3.0, 4.0]
    first, second = caplog.messages
    assert "does not take metrics, the run continues and tries again: HTTPError: HTTP Error 503" in first
    assert second == "OTLP: the collector answers again"


def test_rows_that_nobody_takes_are_bounded_and_counted(collector, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    collector.status = 500
    tracker = Otlp(collector.url, {}, {}, every_s=0.05)
    for iteration in range(25):
        tracker.write(step(iteration + 1))
    tracker.close()
    assert tracker.settle().startswith("OTLP: 25 rows were not sent to http://127.0.0.1:")
    assert len(tracker.rows) <= 10


def test_headers_of_the_environment():
    assert headers_of("") == {}
    assert headers_of("a=b, api-key=x%20y,nothing,=z") == {"a": "b", "api-key": "x y"}


def test_points_of_one_metric_are_together_with_their_labels():
    body = message([(1, gauges_of(step(1))), (2, gauges_of(validation(5)))], {})
    metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    names = [each["name"] for each in metrics]
    assert len(set(names)) == len(names)
    by_name = {each["name"]: each["gauge"]["dataPoints"] for each in metrics}
    assert [each["timeUnixNano"] for each in by_name["megads.consumed_samples"]] == ["1", "2"]
    assert [each["attributes"] for each in by_name["megads.valid_loss"]] == [
        [],
        [{"key": "corpus", "value": {"stringValue": "books"}}],
    ]
