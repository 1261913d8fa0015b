"""When a run is not started again."""

from __future__ import annotations

import pytest

from megads.errors import LaunchError
from megads.launch.supervise.progress import check_chain, reason_against
from megads.monitor.run_state.attempts import Attempt, append_attempt


def test_interrupted_ranks_are_not_started_again():
    attempt = Attempt(started=1.0, ended=2.0, reached=5, exit_code=130)
    assert reason_against([attempt], 3) == "interrupted"


def jobs(run_dir, *ends: tuple[str, int, int, int, str]) -> None:
    """Write starts of jobs: id, where it began and what it reached, exit code, cause."""
    for number, (job, began, reached, code, cause) in enumerate(ends, start=1):
        append_attempt(
            run_dir,
            Attempt(job, started=number, ended=number + 0.5, began=began, reached=reached, exit_code=code, cause=cause),
        )


STUCK = [("7", 40, 44, 1, "unknown"), ("8", 40, 47, 1, "fabric")]


@pytest.mark.parametrize(
    ("ends", "job", "most", "is_refused"),
    [
        (STUCK, "9", 2, True),
        (STUCK, "9", 3, False),
        (STUCK, "9", 0, False),
        (STUCK, "", 2, False),
        (STUCK, "8", 2, False),  # a second command of the same job
        (STUCK[:1], "9", 2, False),
        ([("7", 20, 44, 1, "unknown"), STUCK[1]], "9", 2, False),
        ([STUCK[0], ("8", 40, 44, 75, "time")], "9", 2, True),  # the wall time is too short for a save
        ([STUCK[0], ("8", 40, 44, 75, "")], "9", 2, False),  # somebody asked it to stop
        ([STUCK[0], ("8", 40, 60, 0, "")], "9", 2, False),
        ([STUCK[0], ("8", 40, 44, 1, "node"), ("8", 40, 45, 1, "node")], "9", 2, True),
        ([("6", 0, 40, 75, "time"), *STUCK], "9", 2, True),
    ],
)
def test_a_chain_ends_when_its_jobs_save_nothing_new(tmp_path, ends, job, most, is_refused):
    jobs(tmp_path, *ends)
    if not is_refused:
        return check_chain(tmp_path, job, 40, most)
    with pytest.raises(LaunchError, match=r"the last 2 jobs \(7, 8\) saved nothing beyond iteration 40; the last one"):
        check_chain(tmp_path, job, 40, most)
    return check_chain(tmp_path, job, 60, most)  # a checkpoint came from elsewhere


def test_jobs_of_an_earlier_submission_do_not_count(tmp_path):
    jobs(tmp_path, *STUCK)
    (tmp_path / "jobs.txt").write_text("9\n10\n")
    check_chain(tmp_path, "9", 40, 2)
    (tmp_path / "jobs.txt").write_text("7\n8\n9\n")
    with pytest.raises(LaunchError, match="CHAIN_FAILURES=0"):
        check_chain(tmp_path, "9", 40, 2)


@pytest.mark.parametrize(("cause", "reason"), [("user", "why"), ("time", "why"), ("node", ""), ("filesystem", "")])
def test_what_a_person_has_to_change_is_not_tried_again(cause, reason):
    assert reason_against([Attempt(began=1, reached=2, exit_code=1, cause=cause, verdict="why")], 3) == reason


def test_a_full_disk_may_have_room_again_although_ranks_call_it_a_wrong_input():
    full = Attempt(reached=2, exit_code=2, kind="wrong", cause="filesystem", verdict="the disk is full")
    assert reason_against([full], 3) == ""
    assert (
        reason_against([Attempt(reached=2, exit_code=2, kind="wrong", cause="user")], 3)
        == "the same would happen again"
    )
