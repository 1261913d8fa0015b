"""Ctrl-C on a rank: the first asks the run to stop; one that ended it leaves an outcome, never a second one."""

import os
import signal

import pytest

from megads.monitor.run_state.interrupt import EXIT_INTERRUPTED, handle_ctrl_c, report_interrupted, was_ctrl_c_pressed
from megads.monitor.run_state.outcome import Outcome, read_outcome, write_outcome


@pytest.fixture
def _handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handler")
def test_the_first_ctrl_c_asks_to_stop_and_says_so(tmp_path, capfd):
    handle_ctrl_c(tmp_path)
    assert not was_ctrl_c_pressed()
    os.kill(os.getpid(), signal.SIGINT)
    assert was_ctrl_c_pressed()
    assert capfd.readouterr().err == ("megads: stopping after this step and saving; press Ctrl-C again to abort\n")
    handle_ctrl_c(tmp_path)
    assert not was_ctrl_c_pressed()


def test_a_run_that_ctrl_c_ended_has_an_outcome(tmp_path):
    assert report_interrupted(tmp_path) == "megads: interrupted before the run could save\n"
    outcome = read_outcome(tmp_path)
    assert (outcome.exit_code, outcome.kind, outcome.iteration) == (EXIT_INTERRUPTED, "killed", 0)


def test_the_outcome_of_another_rank_stays(tmp_path):
    write_outcome(tmp_path, Outcome(1, "rank 3 died\nlong story", 7, "error"))
    assert report_interrupted(tmp_path) == "megads: interrupted; rank 3 died\n"
    assert read_outcome(tmp_path).kind == "error"
