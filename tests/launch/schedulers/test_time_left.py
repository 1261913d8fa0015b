"""When a job ends: forms of wall times, what schedulers answer, and schedulers that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.launch.schedulers import time_left
from megads.launch.schedulers.allocation import Allocation
from megads.launch.schedulers.time_left import ends_at, parse_walltime, started_at

NOWHERE = Allocation("none", ("a",), 1)
NOW = 1_700_000_000.0


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


def answering(folder: Path, **answers: str) -> dict[str, str]:
    """Return an environment whose PATH has programs that note their arguments and answer."""
    for name, answer in answers.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/asked"\n{answer}\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []


def say(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


def left_of(find: Callable[[], float], seconds: float) -> bool:
    """Return whether the end that is found is ``seconds`` from a moment during the call."""
    before = time.time()
    end = find()
    return before + seconds <= end <= time.time() + seconds


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


STIME = "Sat Nov 21 10:00:00 2026"
PBS_START = time.mktime((2026, 11, 21, 10, 0, 0, 0, 0, -1))
PBS_JSON = """{"timestamp": 1, "Jobs": {"0.pbs0": {"Job_Name": "x", "resources_used": {"walltime": "00:00:30"},
  STIME "Resource_List": {"ncpus": 2, "walltime": "00:10:00"}}}}"""
PBS_TEXT = f"""Job Id: 0.pbs0
    Job_Name = x
    resources_used.walltime = 00:00:30
    Resource_List.walltime = 00:10:00
    stime = {STIME}
    Variable_List = PBS_O_HOME=/root,
\tPBS_O_WORKDIR=/x
"""


def test_pbs_says_start_and_wall_time(tmp_path):
    env = answering(tmp_path, qstat=say(PBS_JSON.replace("STIME", f'"stime": "{STIME}",'))) | {"PBS_JOBID": "0.pbs0"}
    assert ends_at(Allocation("pbs", ("a",), 2, "0.pbs0"), env, "", NOW) == PBS_START + 600
    assert asked(tmp_path) == ["qstat -f -F json 0.pbs0"]


def test_pbs_without_a_start_counts_what_was_used(tmp_path):
    env = answering(tmp_path, qstat=say(PBS_JSON.replace("STIME", ""))) | {"PBS_JOBID": "0.pbs0"}
    assert left_of(lambda: ends_at(NOWHERE, env, "", NOW), 570)


def test_an_older_pbs_answers_in_text(tmp_path):
    answer = f'if [ "$2" = -F ]; then echo "qstat: illegal option" >&2; exit 2; fi\n{say(PBS_TEXT)}'
    env = answering(tmp_path, qstat=answer) | {"PBS_JOBID": "0.pbs0"}
    assert ends_at(NOWHERE, env, "", NOW) == PBS_START + 600


def test_flux_and_lsf_say_what_is_left(tmp_path):
    env = answering(tmp_path, flux=say("93.5"), bjobs=say("1:30 L"))
    assert left_of(lambda: ends_at(NOWHERE, env | {"FLUX_JOB_ID": "f1"}, "", NOW), 93.5)
    assert left_of(lambda: ends_at(NOWHERE, env | {"LSB_JOBID": "3"}, "", NOW), 5400)


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
