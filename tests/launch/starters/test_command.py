from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import Allocation
from megads.launch.starters.command import plan_launch
from megads.launch.starters.plan import LaunchPlan

COMMAND = [sys.executable, "-c", "pass"]


def plan(starter: str, ranks: int, env: dict[str, str] | None = None) -> LaunchPlan:
    run = RunConfig(launch=LaunchConfig(launch_with=starter))
    return plan_launch(run, Allocation("none", (this_host(),), ranks), COMMAND, {"MEGADS_DEVICE": "cpu", **(env or {})})


def fake_mpi(folder, **versions: str) -> dict[str, str]:
    """Make programs that answer --version and return a PATH with nothing else."""
    for name, text in versions.items():
        program = folder / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
    return {"PATH": str(folder)}


def test_auto_is_the_process_itself_or_our_own_launcher_of_one_host():
    assert plan("auto", 1).in_place
    assert plan("auto", 1).argv == tuple(COMMAND)
    several = plan("auto", 4)
    assert not several.in_place
    assert several.forwards_signals
    assert several.argv == (sys.executable, "-m", "megads.launch.starters.local", "4", *COMMAND)


def test_direct_refuses_several_ranks():
    with pytest.raises(LaunchError, match=r"LAUNCH_WITH=direct starts one rank and this run has 2; use LAUNCH_WITH="):
        plan("direct", 2)


@pytest.mark.parametrize(
    ("programs", "starter", "expected"),
    [
        ({"mpirun": "mpirun (Open MPI) 4.1.4"}, "openmpi", "mpirun"),
        ({"mpirun": "HYDRA build details:", "mpiexec": "mpiexec (OpenRTE) 4.1.4"}, "openmpi", "mpiexec"),
        ({"mpiexec": "HYDRA build details:", "mpirun": "mpirun (Open MPI) 5.0.1"}, "mpich", "mpiexec"),
        ({"mpiexec": "Intel(R) MPI Library for Linux* OS, Version 2021.9"}, "mpich", "mpiexec"),
        ({"mpiexec_hydra": "HYDRA build details:", "mpiexec": "HYDRA"}, "mpich", "mpiexec.hydra"),
    ],
)
def test_mpi_is_told_by_its_version_not_its_name(tmp_path, programs, starter, expected):
    assert plan(starter, 2, fake_mpi(tmp_path, **programs)).argv[0] == str(tmp_path / expected)


@pytest.mark.parametrize(("starter", "way_out"), [("openmpi", "openmpi-bin"), ("mpich", "apt-get install mpich")])
def test_a_missing_mpi_names_the_way_to_get_it(tmp_path, starter, way_out):
    env = fake_mpi(tmp_path, mpiexec="mpiexec (PALS) 1.2.3", mpirun="something else")
    with pytest.raises(
        LaunchError, match=f"LAUNCH_WITH={starter}: no .* on PATH.*{way_out}.*LAUNCH_WITH=local \\(one host\\)"
    ):
        plan(starter, 2, env)


def test_openmpi_runs_as_root_without_a_flag(tmp_path, monkeypatch):
    env = fake_mpi(tmp_path, mpirun="Open MPI")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert plan("openmpi", 2, env).env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in plan("openmpi", 2, env).env


def test_what_an_earlier_launcher_left_is_unset_and_a_users_settings_stay():
    stale = ["RANK", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE"]
    stale += ["OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PMI_FD", "PMIX_NAMESPACE", "MPI_LOCALNRANKS"]
    stale += ["MEGADS_WORLD_SIZE", "MEGADS_IN_PLACE", "MEGADS_ENDS_AT", "HYDI_CONTROL_FD", "CROSS_RANK"]
    stale += ["PALS_RANKID", "PALS_LOCAL_SIZE", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_PTY_PORT", "FLUX_TASK_RANK"]
    kept = ["OMPI_MCA_btl", "PMIX_MCA_gds", "MPIR_CVAR_NEMESIS", "NCCL_DEBUG", "RANKS", "MEGADS_DEVICE", "HOME"]
    kept += ["PALS_PING_PERIOD", "PALS_PMI", "PMI_MAX_KVS_ENTRIES", "SLURM_JOB_ID", "SLURM_NTASKS", "MEGADS_TIMEOUT_S"]
    made = plan("torchrun", 2, dict.fromkeys([*stale, *kept], "x"))
    assert set(stale) <= set(made.unset)
    assert not set(kept) & set(made.unset)
    left = made.environment(dict.fromkeys([*stale, *kept], "x"))
    assert set(left) == set(kept) | set(made.env)


def test_threads_and_accelerator_follow_the_user():
    assert plan("auto", 1).env["DS_ACCELERATOR"] == "cpu"
    assert int(plan("auto", 1).env["OMP_NUM_THREADS"]) >= int(plan("torchrun", 2).env["OMP_NUM_THREADS"]) >= 1
    made = plan("auto", 1, {"OMP_NUM_THREADS": "3", "DS_ACCELERATOR": "xpu"})
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
    assert plan("auto", 1, {"PYTHONPATH": "/mine"}).env["PYTHONPATH"].endswith(":/mine")
    root = plan("auto", 1).env["PYTHONPATH"]
    assert "PYTHONPATH" not in plan("auto", 1, {"PYTHONPATH": f"/mine:{root}"}).env


def test_the_line_does_the_same_when_pasted_into_a_shell(tmp_path):
    code = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('seen.json', 'w'))"
    awkward = {"A": "with space", "B": "quo'te\"$HOME", "C": "", "D": "a=b;c|d\n"}
    words = ("--x=1", "two words", "$(date)", "'")
    made = LaunchPlan((sys.executable, "-c", code, *words), awkward, ("RANK", "GONE"))
    subprocess.run(
        ["bash", "-c", made.line()], cwd=tmp_path, env={"RANK": "1", "KEPT": "2", "PATH": os.environ["PATH"]}
    )
    seen_words, seen_env = json.loads((tmp_path / "seen.json").read_text())
    assert seen_words == list(words)
    assert {name: seen_env[name] for name in awkward} == awkward
    assert "RANK" not in seen_env
    assert seen_env["KEPT"] == "2"


@pytest.mark.mpi
def test_the_line_of_a_real_launch_works_in_a_shell(tmp_path):
    command = [sys.executable, "-c", "from megads.cluster.ranks import find_ranks; print(find_ranks())"]
    run = RunConfig(launch=LaunchConfig(launch_with="mpich"))
    made = plan_launch(run, Allocation("none", ("localhost",), 2), command, {"PATH": os.environ["PATH"]})
    env = {"PATH": os.environ["PATH"], "RANK": "7", "WORLD_SIZE": "9"}
    done = subprocess.run(["bash", "-c", made.line()], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert sorted(re.findall(r"rank=(\d), world_size=2", done.stdout)) == ["0", "1"], done.stderr
