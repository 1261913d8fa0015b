"""What happened on hosts, across jobs: what counts, how it fades, and lines that changed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict

import pytest

from megads.launch.nodes.memory import BAD, FILE, HALF_LIFE_S, NodeEvent, NodeMemory, short
from megads.monitor.rows import sealed

NOW = 1e9


def memory(tmp_path, *events: tuple) -> NodeMemory:
    """Return a memory of events, each a host, what happened and how many half-lives ago."""
    found = NodeMemory(tmp_path / "a/nodes.jsonl", "aurora")
    found.path.parent.mkdir(exist_ok=True)
    rows = (NodeEvent(NOW - ago * HALF_LIFE_S, "aurora", host, what, "7", "node", "ECC") for host, what, ago in events)
    found.path.write_text("".join(f"{sealed(json.dumps(asdict(row)))}\n" for row in rows))
    return found


@pytest.mark.parametrize(
    ("events", "weight"),
    [
        ([("n1", "failed", 0)], 1.0),
        ([("n1", "failed", 0), ("n1", "failed", 1)], 1.5),
        ([("n1", "broken", 0)], 2.0),
        ([("n1", "broken", 1)], 1.0),
        ([("n1", "broken", 0), ("n1", "healthy", 0)], 1.0),
        ([("n1", "failed", 0), ("n1", "healthy", 0), ("n1", "failed", 0), ("n1", "healthy", 0)], 0.75),
        ([("n1", "broken", 0), ("n1", "broken", 0), ("n1", "forgotten", 0)], 0.0),
    ],
)
def test_what_happened_counts_and_fades(tmp_path, events, weight):
    found = memory(tmp_path, *events)
    assert sum(record.weight for record in found.records(NOW)) == pytest.approx(weight)
    assert set(found.bad_hosts(NOW)) == ({"n1"} if weight >= BAD else set())


def test_what_is_noted_is_found_again_on_the_same_machine_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = NodeMemory.of("aurora", {})
    for _ in range(2):
        found.note("n1.cluster.edu", "failed", job="8.pbs", cause="node", why="uncorrectable ECC error")
    (record,) = NodeMemory.of("aurora", {}).records()
    assert (record.host, record.is_bad) == ("n1", True)
    assert record.why.endswith("ago in job 8.pbs: uncorrectable ECC error")
    assert not NodeMemory.of("polaris", {}).records()
    assert (tmp_path / FILE).is_file()
    assert not NodeMemory.of("aurora", {"MEGADS_NODES": "elsewhere"}).records()
    assert found.events()[0].time == pytest.approx(time.time(), abs=600)


def test_rows_that_changed_are_skipped_and_a_folder_that_cannot_be_written_fails_nothing(tmp_path):
    found = memory(tmp_path, ("n1", "broken", 0), ("n2", "broken", 0))
    found.path.write_bytes(
        found.path.read_bytes().replace(b'"n1"', b'"n9"') + b'{"time": "x"}\n7\n{"time": 5, "what": "odd"}\n'
    )
    assert set(found.bad_hosts(NOW)) == {"n2"}
    (tmp_path / "file").write_text("")
    problem = NodeMemory(tmp_path / "file/nodes.jsonl", "aurora").note("n1", "failed")
    assert problem in ("File exists", "Not a directory")


def test_binary_garbage_is_counted_and_reported_once(tmp_path, caplog):
    found = memory(tmp_path, ("n1", "broken", 0), ("n2", "broken", 0))
    first, second = found.path.read_bytes().splitlines(keepends=True)
    half = second[:40] + b"\n"
    found.path.write_bytes(first + b"\x00" * 4096 + b"\n\xff\xfe\x80garbage\n" + half + second + b'{"time": 1')
    for _ in range(2):
        assert set(found.bad_hosts(NOW)) == {"n1", "n2"}
    why = "3 damaged rows skipped (CRC-32 differs, or no JSON object), the first on line 2"
    assert caplog.messages == [f"{found.path}: {why}"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "file in the way", "fine", "new"])
def test_what_cannot_be_written_is_known_before(tmp_path, kind):
    path = tmp_path / "nodes.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "file in the way":
        path.write_text("")
        path = path / "deeper/nodes.jsonl"
    elif kind == "new":
        path = tmp_path / "deeper/still/nodes.jsonl"
    else:
        path.write_text("")
    said = {
        "folder": "Is a directory",
        "pipe": "No such device or address",
        "file in the way": "Not a directory",
        "fine": "",
        "new": "",
    }
    found = NodeMemory(path, "aurora")
    assert found.problem() == said[kind]
    assert bool(found.note("n1", "failed")) == bool(said[kind])


def test_a_name_is_kept_without_its_domain_and_an_address_whole():
    assert [short(each) for each in ("x3005c0s13b1n0.hsn.cm", "n1", "10.0.0.7")] == ["x3005c0s13b1n0", "n1", "10.0.0.7"]
