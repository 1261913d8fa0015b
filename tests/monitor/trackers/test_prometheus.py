"""What Prometheus reads: by HTTP, and from a file."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

import pytest

from megads.monitor.trackers.prometheus import CONTENT, Prometheus, Server
from tests.monitor.trackers.rows import step, validation

LINE = re.compile(r'(megads_\w+)\{run="((?:[^"\\]|\\.)*)"(?:,(\w+)="((?:[^"\\]|\\.)*)")?\} (\S+)')
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return the samples by name and label value; every line is a sample, or the type of those that follow."""
    found, types = {}, []
    for line in text.splitlines():
        if line.startswith("#"):
            types.append(re.fullmatch(r"# TYPE (\w+) gauge", line)[1])
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert match[1] == types[-1]
        found[match[1], match[4] or ""] = float(match[5])
    assert len(set(types)) == len(types)
    return found


def read(url: str) -> tuple[str, str]:
    with DIRECT.open(url, timeout=60) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_a_server_shows_the_newest_values():
    tracker = Prometheus("7B", 4, Server("127.0.0.1", 0))
    url = tracker.server.url
    assert parsed(read(url)[0]) == {("megads_up", ""): 1.0, ("megads_world_size", ""): 4.0}
    for row in (step(1), step(2), validation(2)):
        tracker.write(row)
    text, kind = read(url)
    found = parsed(text)
    assert kind == CONTENT
    assert found["megads_iteration", ""] == 2.0
    assert found["megads_lm_loss", ""] == step(2)["lm_loss"]
    assert found["megads_time", "forward_s"] == 0.1
    assert found["megads_valid_loss", "books"] == validation(2)["valid_loss/books"]
    assert ("megads_mfu", "") not in found
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(url.replace("/metrics", "/etc/passwd"))
    port = int(url.rpartition(":")[2].partition("/")[0])
    tracker.close()
    with socket.socket() as again:  # its port is free
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_file_is_complete_at_any_time_and_says_when_the_run_is_over(tmp_path):
    path = tmp_path / "megads.prom"
    tracker = Prometheus('a "b"\\\n', 1, file=path)
    assert parsed(path.read_text())["megads_up", ""] == 1.0
    for iteration in range(1, 50):
        tracker.write(step(iteration))
    tracker.close()
    found = parsed(path.read_text())
    assert (found["megads_up", ""], found["megads_iteration", ""]) == (0.0, 49.0)
    assert 'run="a \\"b\\"\\\\\\n"' in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["megads.prom"]


def test_a_port_that_is_taken_is_an_error_of_the_tracker():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            Server("127.0.0.1", taken.getsockname()[1])
