"""What the launcher makes of an end that no rank reports, and how it finds the processes below it; in process."""

from __future__ import annotations

import signal

import pytest

from megads.cluster.hosts import this_host
from megads.launch.supervise.end import Ended, report_end
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
    report_end(ended, tmp_path)
    text = f"the ranks ended without an outcome (the launcher {how})"
    assert text in capfd.readouterr().err
    assert read_outcome(tmp_path) == Outcome(ended.exit_code, text, 41, kind, -1, this_host())


def test_a_run_that_was_aborted_says_so(tmp_path, capfd):
    report_end(Ended(-signal.SIGTERM, None, aborted_by=signal.SIGINT, stop_asked=True), tmp_path)
    assert capfd.readouterr().err == ""
    text = "ended by signal 2 (SIGINT), before the run could save"
    assert read_outcome(tmp_path) == Outcome(130, text, 0, "killed", -1, this_host())
    assert state_of(tmp_path, {}, 0.0) == State(FAILED, f"killed: {text}")  # not: starting
