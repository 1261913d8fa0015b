"""The files that ranks leave for the launcher."""

from __future__ import annotations

import json
import os
import threading

import pytest

from megads.monitor.run_state.outcome import (
    Heartbeat,
    Outcome,
    find_outcome,
    last_seen,
    read_heartbeat,
    read_outcome,
    write_first_outcome,
    write_heartbeat,
    write_outcome,
)


def test_an_outcome_comes_back_as_it_was(tmp_path):
    outcome = Outcome(1, "rank 3 host b: gone", 7, "killed", 3, "b")
    write_outcome(tmp_path, outcome)
    assert read_outcome(tmp_path) == outcome


def test_the_first_to_tell_is_believed(tmp_path):
    first = Outcome(1, "rank 3 died", 7, "killed", 3, "b")
    assert write_first_outcome(tmp_path, first)
    assert not write_first_outcome(tmp_path, Outcome(1, "lost another rank", 7, "lost"))
    assert read_outcome(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]


def test_the_first_is_believed_on_a_file_system_without_links_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(PermissionError()))
    assert write_first_outcome(tmp_path, Outcome(1, "rank 3 died", 7))
    assert not write_first_outcome(tmp_path, Outcome(1, "lost another rank", 7))
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]


def test_an_outcome_of_another_host_is_waited_for(tmp_path):
    late = threading.Timer(0.3, lambda: write_outcome(tmp_path, Outcome(0, "", 3)))
    assert find_outcome(tmp_path) is None
    late.start()
    assert find_outcome(tmp_path, 60.0) == Outcome(0, "", 3)
    late.join()


def test_an_outcome_of_an_older_version_is_read(tmp_path):
    (tmp_path / "outcome.json").write_text('{"exit_code": 75, "message": "asked", "iteration": 4, "other": 1}')
    assert read_outcome(tmp_path) == Outcome(75, "asked", 4)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"exit_code": "0"}', "{}", '"x"'])
def test_a_broken_outcome_is_none(tmp_path, text):
    (tmp_path / "outcome.json").write_text(text)
    assert read_outcome(tmp_path) is None


def test_a_heartbeat_comes_back_and_leaves_nothing_beside_it(tmp_path):
    beat = Heartbeat(7, "step", 1.0, 2.0, 33, "a", 1, 4.5)
    write_heartbeat(tmp_path, beat)
    write_heartbeat(tmp_path, beat)
    assert read_heartbeat(tmp_path) == beat
    assert os.listdir(tmp_path) == ["heartbeat.json"]
    assert last_seen(tmp_path).startswith("; rank 0 on a was last seen in step, after step 7, ")


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"iteration": 1})])
def test_a_broken_heartbeat_is_none(tmp_path, text):
    (tmp_path / "heartbeat.json").write_text(text)
    assert read_heartbeat(tmp_path) is None
    assert last_seen(tmp_path) == ""


def test_a_run_does_not_fail_for_want_of_a_heartbeat(tmp_path):
    write_heartbeat(tmp_path / "gone", Heartbeat(0, "step", 0.0, 0.0, 1, "a"))
    assert read_heartbeat(tmp_path / "gone") is None
