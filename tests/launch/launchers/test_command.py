"""Launchers that are scripts, and the plans of launches with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.launchers.command import plan_launch
from megads.launch.schedulers.allocation import Allocation
from tests.launch.launchers.helpers import COMMAND, TWO, fake_mpi, plan, plan_here


@pytest.mark.parametrize(
    ("programs", "allocation", "facts", "expected"),
    [
        ({}, Allocation("none", (this_host(),), 1), Facts(), "direct"),
        ({"mpirun": "openmpi"}, Allocation("none", (this_host(),), 2), Facts(), "local"),
        ({"mpirun": "openmpi", "mpiexec": "mpich"}, TWO, Facts(), "openmpi"),
        ({"mpirun": "mpich"}, TWO, Facts(), "mpich"),
        ({"srun": "srun", "mpirun": "openmpi"}, Allocation("slurm", ("n1", "n2"), 2), Facts(), "srun"),
        ({"mpirun": "openmpi"}, Allocation("slurm", ("n1", "n2"), 2), Facts(), "openmpi"),
        ({"srun": "srun"}, Allocation("slurm", (this_host(),), 2), Facts(), "srun"),
        ({}, Allocation("slurm", (this_host(),), 2), Facts(), "local"),
        ({"mpiexec": "pals"}, Allocation("pbs", ("n1", "n2"), 2), Facts(), "pals"),
        ({"mpiexec": "mpich"}, Allocation("pbs", ("n1", "n2"), 2), Facts(), "mpich"),
        ({"mpiexec": "mpich"}, Allocation("pbs", (this_host(),), 2), Facts(), "local"),
        ({"flux": "flux", "srun": "srun"}, Allocation("flux", ("n1",), 1), Facts(), "flux"),
        ({"jsrun": "jsrun"}, Allocation("lsf", ("n1",), 2), Facts(), "jsrun"),
        ({"mpirun": "openmpi"}, Allocation("pbs", (this_host(),), 2), Facts(starter="openmpi"), "openmpi"),
        ({"mpiexec": "pals"}, Allocation("pbs", (this_host(),), 1), Facts(starter="pals", scheduler="pbs"), "pals"),
        (
            {"mpiexec": "pals"},
            Allocation("none", (this_host(),), 2),
            Facts(starter="pals", scheduler="pbs"),
            "local",
        ),
    ],
)
def test_auto(tmp_path, path, programs, allocation, facts, expected):
    made = plan(path(**programs), tmp_path, allocation, facts)
    explicit = plan(path(**programs), tmp_path, allocation, facts, launch_with=expected)
    assert made.argv == explicit.argv


def test_auto_without_a_way_to_the_hosts_names_what_it_looked_for(tmp_path, path):
    with pytest.raises(LaunchError, match=r"the run is on n1 too.*looked for srun, openmpi, mpich; load the module"):
        plan(path(), tmp_path, Allocation("slurm", ("n1", "n2"), 2))


def test_auto_is_the_process_itself_or_our_own_launcher_of_one_host():
    assert plan_here("auto", 1).in_place
    assert plan_here("auto", 1).argv == tuple(COMMAND)
    several = plan_here("auto", 4)
    assert not several.in_place
    assert several.forwards_signals
    assert several.argv == (sys.executable, "-m", "megads.launch.launchers.local", "4", *COMMAND)


def test_openmpi_runs_as_root_without_a_flag(tmp_path, monkeypatch):
    env = fake_mpi(tmp_path, mpirun="Open MPI")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert plan_here("openmpi", 2, env).env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in plan_here("openmpi", 2, env).env


def test_threads_and_accelerator_follow_the_user():
    assert plan_here("auto", 1).env["DS_ACCELERATOR"] == "cpu"
    assert int(plan_here("auto", 1).env["OMP_NUM_THREADS"]) >= int(plan_here("torchrun", 2).env["OMP_NUM_THREADS"]) >= 1
    made = plan_here("auto", 1, {"OMP_NUM_THREADS": "3", "DS_ACCELERATOR": "xpu"})
    assert not {"OMP_NUM_THREADS", "DS_ACCELERATOR"} & made.env.keys()


def test_the_machine_gives_variables_that_the_user_may_override():
    facts = Facts(environment={"NCCL_CROSS_NIC": "1", "FI_PROVIDER": "cxi", "OMP_NUM_THREADS": "7"})
    run = RunConfig(launch=LaunchConfig(launch_with="torchrun"))
    env = {"MEGADS_DEVICE": "cpu", "FI_PROVIDER": "tcp"}
    made = plan_launch(run, Allocation("none", (this_host(),), 2), COMMAND, env, facts=facts)
    assert made.environment(env)["FI_PROVIDER"] == "tcp"
    assert (made.env["NCCL_CROSS_NIC"], made.env["OMP_NUM_THREADS"]) == ("1", "7")


def test_ranks_are_told_how_many_they_are_and_which_attempt_it_is():
    run = RunConfig(launch=LaunchConfig(launch_with="torchrun"))
    ends = {"MEGADS_ENDS_AT": "17"}
    env = {"MEGADS_ATTEMPT": "9", "MEGADS_ENDS_AT": "3", "MEGADS_NUM_RANKS": "4"}
    one, two = (
        plan_launch(run, Allocation("none", (this_host(),), 2, "7"), COMMAND, env, attempt=n, extra=ends)
        for n in (0, 1)
    )
    assert [made.env["MEGADS_ATTEMPT"] for made in (one, two)] == ["0", "1"]
    assert (one.env["MEGADS_NUM_RANKS"], one.env["MEGADS_ENDS_AT"]) == ("2", "17")
    assert one.env["MASTER_PORT"] != two.env["MASTER_PORT"]


def test_two_launches_in_one_job_do_not_meet_on_one_port(monkeypatch):
    run, allocation = RunConfig(launch=LaunchConfig(launch_with="torchrun")), Allocation("pbs", (this_host(),), 2, "7")
    ports = set()
    for process in (os.getpid(), 1234567):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        ports.add(plan_launch(run, allocation, COMMAND, {}).env["MASTER_PORT"])
    assert len(ports) == 2


def test_ranks_find_megads_wherever_they_start():
    assert plan_here("auto", 1, {"PYTHONPATH": "/mine"}).env["PYTHONPATH"].endswith(":/mine")
    root = plan_here("auto", 1).env["PYTHONPATH"]
    assert "PYTHONPATH" not in plan_here("auto", 1, {"PYTHONPATH": f"/mine:{root}"}).env


@pytest.mark.mpi
def test_the_line_of_a_real_launch_works_in_a_shell(tmp_path):
    command = [sys.executable, "-c", "from megads.cluster.ranks import find_ranks; print(find_ranks())"]
    run = RunConfig(launch=LaunchConfig(launch_with="mpich"))
    made = plan_launch(run, Allocation("none", ("localhost",), 2), command, {"PATH": os.environ["PATH"]})
    env = {"PATH": os.environ["PATH"], "RANK": "7", "WORLD_SIZE": "9"}
    done = subprocess.run(["bash", "-c", made.line()], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert sorted(re.findall(r"rank=(\d), world_size=2", done.stdout)) == ["0", "1"], done.stderr
