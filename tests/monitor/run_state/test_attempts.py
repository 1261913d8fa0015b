"""Every start of a run: its two rows, and what is found where the second one is missing."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from megads.config.run_files import ATTEMPTS, OUTCOME
from megads.monitor.rows import Damage
from megads.monitor.run_state.attempts import Attempt, append_attempt, close_attempts, read_attempts
from megads.monitor.run_state.outcome import Heartbeat, Outcome, write_heartbeat, write_outcome

FIRST = Attempt("7.pbs", 0, 1000.0, 0.0, ("a", "b"), 4, "TP 2 PP 1 SP 1 DP 2 ZERO 1", 3, 10, 10)
ENDED = replace(FIRST, ended=1500.0, reached=30, exit_code=1, kind="killed", rank=3, host="b", message="gone")


def beat(run_dir, at: float, iteration: int = 20, attempt: int = 0) -> None:
    write_heartbeat(run_dir, Heartbeat(iteration, "step", at - 1, at, 5, "a", attempt))
    os.utime(run_dir / "heartbeat.json", (at, at))


def test_there_is_none_where_nothing_started(tmp_path):
    assert read_attempts(tmp_path) == []
    close_attempts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_row_of_the_end_counts(tmp_path):
    second = replace(ENDED, job="8.pbs", started=2000.0, ended=2500.0, excluded=("b",))
    for row in (FIRST, ENDED, replace(second, ended=0.0), second):
        append_attempt(tmp_path, row)
    assert read_attempts(tmp_path, now=9999.0) == [ENDED, second]


def test_a_start_without_an_end_has_that_of_its_outcome(tmp_path):
    append_attempt(tmp_path, FIRST)
    write_outcome(tmp_path, Outcome(75, "wall time", 40, "stopped"))
    os.utime(tmp_path / OUTCOME, (1700.0, 1700.0))
    expected = replace(
        FIRST,
        ended=1700.0,
        reached=40,
        exit_code=75,
        kind="stopped",
        message="wall time",
        verdict="saved and stopped: wall time",
    )
    assert read_attempts(tmp_path, now=9999.0) == [expected]
    close_attempts(tmp_path)
    os.unlink(tmp_path / OUTCOME)
    assert read_attempts(tmp_path, now=9999.0) == [expected]
    rows = (tmp_path / ATTEMPTS).read_bytes()
    close_attempts(tmp_path)  # it has an end
    assert (tmp_path / ATTEMPTS).read_bytes() == rows


@pytest.mark.parametrize(("written", "ended"), [(1530.0, 1530.0), (90000.0, 1500.0)])
def test_a_folder_that_was_copied_ends_with_its_heartbeat(tmp_path, written, ended):
    append_attempt(tmp_path, FIRST)
    beat(tmp_path, 1500.0)
    write_outcome(tmp_path, Outcome(0, "done", 40, "done"))
    os.utime(tmp_path / OUTCOME, (written, written))
    assert read_attempts(tmp_path, now=99999.0)[0].ended == ended


@pytest.mark.parametrize(("now", "is_open"), [(1230.0, True), (1300.0, False)])
def test_a_start_with_a_fresh_heartbeat_runs(tmp_path, now, is_open):
    append_attempt(tmp_path, FIRST)
    beat(tmp_path, 1200.0)
    (found,) = read_attempts(tmp_path, now=now)
    assert (found.is_open, found.reached) == (is_open, 20)
    assert (found.kind, found.ended) == (("", 0.0) if is_open else ("lost", 1200.0))


@pytest.mark.parametrize(("now", "is_open"), [(1100.0, True), (9999.0, False)])
def test_the_heartbeat_of_an_earlier_start_says_nothing(tmp_path, now, is_open):
    append_attempt(tmp_path, replace(FIRST, attempt=1))
    beat(tmp_path, 990.0)
    (found,) = read_attempts(tmp_path, now=now)
    assert (found.is_open, found.reached) == (is_open, 10)


def test_a_start_has_the_seconds_that_its_own_heartbeat_says(tmp_path):
    """That of a start shortly before, which had the same number, says nothing of this one."""
    append_attempt(tmp_path, FIRST)
    spent = {"set-up": 30.0, "step": 160.0}
    write_heartbeat(tmp_path, Heartbeat(20, "step", 1199.0, 1200.0, 5, "a", 0, spent=spent))
    os.utime(tmp_path / "heartbeat.json", (1200.0, 1200.0))
    (found,) = read_attempts(tmp_path, now=1300.0)
    assert found.spent == spent
    append_attempt(tmp_path, replace(FIRST, job="8.pbs", started=1210.0))
    assert read_attempts(tmp_path, now=1300.0)[1].spent == {}
    append_attempt(tmp_path, replace(ENDED, spent=spent))
    assert read_attempts(tmp_path, now=1300.0)[0].spent == spent
    append_attempt(tmp_path, replace(ENDED, spent={"step": "x"}))  # of nobody
    assert read_attempts(tmp_path, now=1300.0)[0].spent == spent


def test_a_start_before_another_one_is_over(tmp_path):
    append_attempt(tmp_path, FIRST)
    append_attempt(tmp_path, replace(FIRST, job="8.pbs", started=1400.0))
    first, second = read_attempts(tmp_path, now=1410.0)
    assert (first.ended, first.kind, first.exit_code) == (1400.0, "lost", 1)
    assert second.is_open


def test_rows_that_changed_or_were_cut_are_skipped_and_counted(tmp_path):
    path = tmp_path / ATTEMPTS
    append_attempt(tmp_path, FIRST)
    append_attempt(tmp_path, ENDED)
    path.write_bytes(path.read_bytes().replace(b'"reached": 30', b'"reached": 99'))
    damage = Damage()
    assert read_attempts(tmp_path, now=1001.0, damage=damage) == [FIRST]
    assert damage.count == 1
    path.write_bytes(path.read_bytes()[:-20])  # a full disk
    append_attempt(tmp_path, ENDED)
    assert read_attempts(tmp_path, now=1001.0) == [ENDED]


def test_binary_garbage_between_rows_is_counted_and_reported_once(tmp_path, caplog):
    """A host that crashed may leave blocks of zeros; a summary, a report and the next start read the file each."""
    path = tmp_path / ATTEMPTS
    append_attempt(tmp_path, FIRST)
    path.write_bytes(path.read_bytes() + b"\x00" * 512 + b"\n" + bytes(range(255, 127, -1)) + b"\n")
    append_attempt(tmp_path, ENDED)
    for _ in range(3):
        assert read_attempts(tmp_path, now=1001.0) == [ENDED]
    why = "2 damaged rows skipped (CRC-32 differs, or no JSON object), the first on line 2"
    assert caplog.messages == [f"{path}: {why}"]


@pytest.mark.parametrize("row", ["7", "{}", '{"started": "x"}', '{"started": 5, "hosts": "a"}', '{"started": 1e300}'])
def test_rows_of_another_kind_are_skipped(tmp_path, row):
    (tmp_path / ATTEMPTS).write_text(f"{row}\n")
    append_attempt(tmp_path, ENDED)
    assert read_attempts(tmp_path) == [ENDED]


def test_a_folder_that_is_gone_fails_no_run(tmp_path):
    append_attempt(tmp_path / "gone", FIRST)
    assert not (tmp_path / "gone").exists()
