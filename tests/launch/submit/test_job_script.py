"""Handing jobs to a scheduler."""

from __future__ import annotations

import pytest

from megads.errors import LaunchError
from megads.launch.schedulers.batch_job import clock
from megads.launch.submit.job_script import job_name, send
from tests.launch.submit.helpers import fake


@pytest.mark.parametrize(
    ("scheduler", "program", "argv"),
    [
        ("pbs", "qsub", ["", "-W depend=afterany:1.pbs", "-W depend=afterany:2.pbs"]),
        ("slurm", "sbatch", ["--parsable", "--parsable --dependency=afterany:1", "--parsable --dependency=afterany:2"]),
    ],
)
def test_a_chain(tmp_path, scheduler, program, argv):
    tail = {"pbs": ".pbs", "slurm": ";big"}[scheduler]
    env = fake(tmp_path, program, f'cd {tmp_path}; echo "$*" >>log; cat >script; echo "$(wc -l <log){tail}"')
    jobs = send("text", scheduler, env, chain=3)
    assert jobs == [f"{number}{tail.partition(';')[0]}" for number in (1, 2, 3)]
    assert (tmp_path / "log").read_text().splitlines() == argv
    assert (tmp_path / "script").read_text() == "text"


def test_a_refused_job_names_those_before_it(tmp_path):
    env = fake(
        tmp_path, "qsub", f'cd {tmp_path}; [ ! -e done ] || {{ echo "no more" >&2; exit 1; }}; touch done; echo 1.pbs'
    )
    with pytest.raises(LaunchError, match=r"^qsub -W depend=afterany:1.pbs: no more; submitted before: 1.pbs$"):
        send("text", "pbs", env, chain=2, keep=lambda jobs: (tmp_path / "jobs.txt").write_text(" ".join(jobs)))
    assert (tmp_path / "jobs.txt").read_text() == "1.pbs"


def test_no_scheduler_is_one_line():
    with pytest.raises(
        LaunchError, match="sbatch is not on PATH; submit from a login node, or see the job with --dry-run"
    ):
        send("text", "slurm", {"PATH": "/none"})


def test_names_and_times():
    assert job_name("7B") == "megads-7B"
    assert job_name("my run/\xfc") == "megads-my_run__"
    assert [clock(seconds) for seconds in (59.5, 3600, 90061)] == ["0:01:00", "1:00:00", "25:01:01"]
