"""PBS: hosts, and the end of a job."""

from __future__ import annotations

import time

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import Allocation, find_allocation
from megads.launch.schedulers.time_left import ends_at
from tests.launch.schedulers.helpers import CPU, NOW, NOWHERE, answering, asked, left_of, say

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


def test_a_pbs_job_without_its_list_of_hosts_is_not_taken_for_one_host(tmp_path):
    with pytest.raises(LaunchError, match=r"PBS job 7.pbs: PBS_NODEFILE is not set.*HOSTFILE.*unset PBS_JOBID"):
        find_allocation(RunConfig(), CPU | {"PBS_JOBID": "7.pbs"})
    (tmp_path / "hosts").write_text("a\nb\n")
    run = RunConfig(launch=LaunchConfig(hostfile=str(tmp_path / "hosts")))
    assert find_allocation(run, CPU | {"PBS_JOBID": "7.pbs"}).hosts == ("a", "b")
