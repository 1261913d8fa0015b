"""When a job ends: forms of wall times, what schedulers answer, and schedulers that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.launch.schedulers import time_left
from megads.launch.schedulers.allocation import Allocation
from megads.launch.schedulers.time_left import ends_at, parse_walltime, started_at
from tests.launch.schedulers.helpers import NOW, NOWHERE, answering, asked, left_of, say


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6:00:00", 21600),
        ("06:00:00", 21600),
        ("30:00", 1800),
        ("90m", 5400),
        ("6h", 21600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45s", 45),
        ("2d", 172800),
        ("1-12:00:00", 129600),
        ("1-12:00", 129600),
        ("100:00:00", 360000),
        (" 6H ", 21600),
    ],
)
def test_forms_of_a_wall_time(text, seconds):
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize("text", ["6", "3600", "six", "", "0h", "0:00", "6:0:0:0", "h", "-1h", "6 hours", "1:2:345"])
def test_a_wrong_wall_time_is_one_line_that_says_what_works(text):
    with pytest.raises(ConfigError, match=r"^WALLTIME=.*: not a time; write hours like 6:00:00 or 6h") as caught:
        parse_walltime(text)
    assert "\n" not in str(caught.value)


def test_nothing_is_known_outside_of_a_job():
    assert ends_at(NOWHERE, {"PATH": "/usr/bin:/bin"}, "", NOW) == 0.0


def test_the_user_s_wall_time_counts_from_the_start():
    assert ends_at(NOWHERE, {}, "1h", NOW) == NOW + 3600


def test_what_a_job_script_did_before_it_became_the_launcher_counts():
    code = "from megads.launch.schedulers.time_left import started_at; print(started_at())"
    script = 'date +%s.%N; sleep 0.5; exec "$@"'
    begun = time.time()
    done = subprocess.run(
        ["bash", "-c", script, "", sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    in_script, found = map(float, done.stdout.split())
    assert begun - 0.1 < found < in_script + 0.1
    before = time.time()
    assert before <= started_at(Path("/none")) <= time.time()


def test_slurm_s_own_variable_needs_no_question(tmp_path):
    env = answering(tmp_path, squeue="exit 1") | {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000100"}
    assert ends_at(NOWHERE, env, "", NOW) == 1700000100
    assert ends_at(NOWHERE, env, "30s", NOW) == NOW + 30
    assert ends_at(NOWHERE, env, "6h", NOW) == 1700000100
    assert asked(tmp_path) == []


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("1-02:03:04", 93784), ("2:03:04", 7384), ("3:04", 184), ("0:00", 0)],
)
def test_squeue_is_asked_for_the_time_left(tmp_path, left, seconds):
    env = answering(tmp_path, squeue=say(left)) | {"SLURM_JOB_ID": "7"}
    assert left_of(lambda: ends_at(Allocation("slurm", ("a", "b"), 2, "7"), env, "", NOW), seconds)
    assert asked(tmp_path) == ["squeue -h -j 7 -o %L"]


def test_a_job_without_limit_has_no_end(tmp_path):
    env = answering(tmp_path, squeue=say("UNLIMITED"), scontrol="exit 1") | {"SLURM_JOB_ID": "7"}
    told: list[str] = []
    assert ends_at(NOWHERE, env, "", NOW, say=told.append) == 0.0
    assert told == []


def test_scontrol_is_asked_when_squeue_fails(tmp_path):
    line = "JobId=7 JobName=x StartTime=2026-01-31T11:00:00 EndTime=2026-01-31T12:30:00 Deadline=N/A"
    env = answering(tmp_path, squeue="echo slurm_load_jobs error >&2; exit 1", scontrol=say(line))
    end = ends_at(NOWHERE, env | {"SLURM_JOB_ID": "7"}, "", NOW)
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end)) == "2026-01-31 12:30:00"
    assert asked(tmp_path) == ["squeue -h -j 7 -o %L", "scontrol -o show job 7"]


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "qstat: No such file or directory"),
        ({"qstat": "echo 'qstat: cannot connect to server' >&2; exit 1"}, "qstat: qstat: cannot connect to server"),
        ({"qstat": "echo nonsense"}, "qstat: 'nonsense' is not understood"),
        ({"qstat": "exec /bin/sleep 30"}, "qstat: no answer in 0.2 s"),
    ],
)
def test_a_scheduler_that_does_not_answer_is_one_line_and_no_failure(tmp_path, monkeypatch, programs, reason):
    if "no answer" in reason:
        monkeypatch.setattr(time_left, "PATIENCE_S", 0.2)
    env = {**os.environ, **answering(tmp_path, **programs), "PATH": str(tmp_path), "PBS_JOBID": "0.pbs0"}
    told: list[str] = []
    assert ends_at(NOWHERE, env, "", NOW, say=told.append) == 0.0
    assert told == [
        f"the end of pbs job 0.pbs0 is not known: {reason}; set WALLTIME, e.g. 6:00:00, so that the run saves in time"
    ]
    told.clear()
    assert ends_at(NOWHERE, env, "1h", NOW, say=told.append) == NOW + 3600
    assert told == [f"the end of pbs job 0.pbs0 is not known: {reason}"]
