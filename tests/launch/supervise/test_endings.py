"""What the launcher makes of an end that no rank reports, and how it finds the processes below it; in process."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from megads.cluster.hosts import this_host
from megads.launch.supervise import processes
from megads.launch.supervise.processes import Family, orphans_adopted
from megads.launch.supervise.run import Ended, tell_end
from megads.monitor.run_state.outcome import Heartbeat, Outcome, read_outcome, write_heartbeat
from megads.monitor.run_state.runs import FAILED, State, state_of


@pytest.mark.parametrize(
    ("ended", "kind", "how"),
    [
        (Ended(-signal.SIGKILL, None), "killed", "was killed by signal 9"),
        (Ended(-9, None, out_of_memory=True), "memory", "was killed by signal 9: this host ran out of memory"),
        (Ended(137, None, out_of_memory=True), "memory", "ended with 137: this host ran out of memory"),
        (Ended(7, None, out_of_memory=True), "lost", "ended with 7"),
    ],
)
def test_an_end_without_an_outcome_gets_one(tmp_path, capfd, ended, kind, how):
    write_heartbeat(tmp_path, Heartbeat(41, "step", 0.0, 0.0, 1, "n1"))
    tell_end(ended, tmp_path)
    text = f"the ranks ended without an outcome (the starter {how})"
    assert text in capfd.readouterr().err
    assert read_outcome(tmp_path) == Outcome(ended.exit_code, text, 41, kind, -1, this_host())


def test_a_run_that_was_aborted_says_so(tmp_path, capfd):
    tell_end(Ended(-signal.SIGTERM, None, aborted_by=signal.SIGINT, stop_asked=True), tmp_path)
    assert capfd.readouterr().err == ""
    text = "ended by signal 2 (SIGINT), before the run could save"
    assert read_outcome(tmp_path) == Outcome(130, text, 0, "killed", -1, this_host())
    assert state_of(tmp_path, {}, 0.0) == State(FAILED, f"killed: {text}")  # not: starting


def test_a_family_is_found_with_one_look_at_all_processes(monkeypatch):
    looks = []
    glob = Path.glob

    def counted(path: Path, pattern: str) -> object:
        looks.append(pattern)
        return glob(path, pattern)

    script = "sleep 60 & sleep 60 & sh -c 'sleep 60 & echo; wait' & wait"
    with orphans_adopted(), subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as starter:
        family = Family(starter)
        assert starter.stdout is not None
        starter.stdout.readline()
        monkeypatch.setattr(processes.Path, "glob", counted)
        found = family.members()
        assert looks == ["[0-9]*/stat"]
        assert found[0] == starter.pid
        assert len(found) >= 5
        family.kill()
        assert family.members() == []
        for pid in found[1:]:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
