"""Hosts that are known for failures are used last, named, and kept out of the next job."""

from __future__ import annotations

from megads.config.sources.resolve import resolve
from megads.launch.nodes.chosen import exclusion_note, host_notes, without_bad
from megads.launch.nodes.memory import NodeMemory
from megads.launch.schedulers.allocation import Allocation

RUN = resolve("tiny", env={}, machine="generic").run


def job(tmp_path, *bad: str) -> dict[str, str]:
    env = {"MEGADS_NODES": str(tmp_path / "nodes.jsonl")}
    for host in bad:
        NodeMemory.of("generic", env).note(host, "broken", why="devices: 3 of 4")
    return env


def test_spare_hosts_take_the_place_of_bad_ones(tmp_path):
    env = job(tmp_path, "b", "d")
    found = without_bad(Allocation("none", ("a", "b.x", "c"), 2, spare=("d", "e")), RUN, env)
    assert (found.hosts, found.spare) == (("a", "e", "c"), ("d", "b.x"))
    assert [line.split(":")[0] for line in host_notes(RUN, found, env, tmp_path)] == [
        "host d is left unused",
        "host b.x is left unused",
    ]


def test_without_a_good_spare_host_a_bad_one_is_used_and_named(tmp_path):
    env = job(tmp_path, "b", "d")
    for spare in ((), ("d",)):
        given = Allocation("none", ("a", "b"), 2, spare=spare)
        assert without_bad(given, RUN, env).hosts == ("a", "b")
    (line,) = host_notes(RUN, Allocation("none", ("a", "b"), 2), env, tmp_path)
    assert line.startswith("host b is used, as there is no spare host: broken ")
    assert line.endswith("devices: 3 of 4; megads nodes --forget b once it is repaired")


def test_a_submission_says_which_hosts_it_excludes(tmp_path):
    bad = NodeMemory.of("generic", job(tmp_path, "b", "a")).bad_hosts()
    assert exclusion_note(bad, "--exclude=") == "excluded 2 hosts known for failures: --exclude=a,b"
    assert "ask for one host more than NHOSTS" in exclusion_note(bad, "")
    assert exclusion_note({}, "--exclude=") == ""


def test_a_memory_that_cannot_be_written_is_named_before_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone, two = Allocation("none", ("a",), 2), Allocation("none", ("a", "b"), 2)
    given = {"MEGADS_NODES": str(tmp_path)}
    line = f"MEGADS_NODES={tmp_path}: Is a directory; failures of hosts are not kept for later jobs; name another file"
    assert host_notes(RUN, alone, given, tmp_path) == [line]
    (tmp_path / ".megads").write_text("")
    restarts = RUN.model_copy(update={"launch": RUN.launch.model_copy(update={"max_restarts": 1})})
    assert host_notes(RUN, two, {}, tmp_path) == host_notes(restarts, alone, {}, tmp_path) == []
    (line,) = host_notes(restarts, two, {}, tmp_path)
    assert line.startswith(".megads/nodes.jsonl: Not a directory; ")
    assert line.endswith("; MEGADS_NODES names another file")
