"""A launch while its ranks run: signals and time, without ranks."""

import os
import signal
import subprocess
import time

import pytest

from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise import watch
from megads.launch.supervise.processes import Family, children
from megads.launch.supervise.watch import Watch
from megads.monitor.run_state.outcome import Heartbeat, Outcome, write_heartbeat, write_outcome


@pytest.fixture
def watched(tmp_path):
    """What waits for a launcher, a sleep here, and gets signals and time from the test."""
    others = children(os.getpid())  # what other tests of this process keep
    starter = subprocess.Popen(["sleep", "300"])
    made = Watch(Family(starter, others), LaunchPlan(("sleep",), {}, forwards_signals=False), tmp_path, [])
    yield made
    made.family.kill()


def test_a_schedulers_term_after_its_warning_leaves_time_to_save(watched, tmp_path):
    write_heartbeat(tmp_path, Heartbeat(7, "save", 0.0, 0.0, 1, "a", save_s=1000.0))
    watched._on_signal(signal.SIGUSR1)
    watched._on_signal(signal.SIGTERM)
    assert not watched.aborted_by
    assert 2200 < watched.terminate_at - time.monotonic() <= 2300
    watched._on_signal(signal.SIGTERM)
    assert watched.aborted_by == signal.SIGTERM


def test_a_starter_that_outlives_its_run_is_ended(watched, tmp_path, monkeypatch, capfd):
    write_outcome(tmp_path, Outcome(0, "done", 9))
    watched._on_time(time.monotonic())
    assert watched.kill_at == float("inf")
    monkeypatch.setattr(watch, "END_GRACE_S", 0.0)
    watched._on_time(time.monotonic() + 2 * watch.LOOK_S)
    watched._on_time(time.monotonic() + 2 * watch.LOOK_S)
    assert watched.family.starter.wait(60) == -signal.SIGTERM
    assert "the run has ended, but its launcher or some ranks have not" in capfd.readouterr().err
