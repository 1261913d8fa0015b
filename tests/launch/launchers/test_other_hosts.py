"""The command of every launcher, given hosts: exact words, and real launchers where this host has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.launchers import command as starter_module
from megads.launch.launchers.command import plan_launch
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation
from tests.launch.launchers.helpers import FRONTIER, TWO, plan, shown


def _seen(made: LaunchPlan, env: dict[str, str]) -> list[str]:
    made.write_files()
    # As launches have it: Hydra, which forwards its own, may die of a rank that has ended.
    closed = subprocess.DEVNULL
    done = subprocess.run(
        made.argv, env=made.environment(env), stdin=closed, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n")[:-1])


def _run(starter: str, cpu_bind: str, env: dict[str, str], folder: Path, size: int = 2) -> list[str]:
    code = "import os; os.write(1, f\"{sorted(os.sched_getaffinity(0))} {os.environ['MEGADS_NUM_RANKS']}\\n\".encode())"
    run = RunConfig(launch=LaunchConfig(launch_with=starter, cpu_bind=cpu_bind))
    here = Allocation("none", ("localhost",), size)
    return _seen(plan_launch(run, here, [sys.executable, "-c", code], env, folder=folder), env)


def test_srun(tmp_path, path):
    env = path(srun="srun") | {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64(x2)", "SLURM_NTASKS_PER_NODE": "1"}
    made = plan(env | {"SLURM_EXPORT_ENV": "NONE"}, tmp_path, Allocation("slurm", ("n1", "n2"), 4, "7"))
    assert shown(made, tmp_path) == (
        "srun --nodes=2 --ntasks=8 --distribution=block --ntasks-per-node=4 --cpus-per-task=16 --nodelist=run/hosts "
        "--kill-on-bad-exit=1 --export=ALL DEAF"
    )
    assert made.files == {str(tmp_path / "run/hosts"): "n1\nn2\n"}
    assert {"SLURM_NTASKS_PER_NODE", "SLURM_EXPORT_ENV"} <= set(made.unset)
    assert "SLURM_JOB_ID" not in made.unset
    assert (made.env["MASTER_ADDR"], made.env["MEGADS_NUM_RANKS"], made.env["OMP_NUM_THREADS"]) == ("n1", "8", "16")


def test_srun_with_fewer_cpus_than_ranks_and_inside_a_step(tmp_path, path):
    env = path(srun="srun") | {"SLURM_JOB_CPUS_PER_NODE": "8,2", "SLURM_STEP_ID": "0"}
    made = plan(env, tmp_path, Allocation("slurm", ("n1", "n2"), 4, "7", num_ranks=7))
    assert "--ntasks=7 --distribution=plane=4 --cpus-per-task=1 " in shown(made, tmp_path)
    assert " --overcommit " in shown(made, tmp_path)
    assert made.env["SLURM_OVERLAP"] == "1"


@pytest.mark.parametrize(
    ("facts", "cpu_bind", "words"),
    [
        (Facts(cores=("0-7", "8-15"), reserved_cores="0,8"), "", "--cpu-bind=mask_cpu:0xe,0x70,0xe00,0x7000"),
        (Facts(cores=("0-7", "8-15")), "none", "--cpu-bind=none"),
        (Facts(), "cores", "--cpu-bind=cores"),
        (Facts(), "list:0:1:2:3,5", "--cpu-bind=mask_cpu:0x1,0x2,0x4,0x28"),
        (Facts(), "", "--export=ALL"),
    ],
)
def test_srun_binds_by_masks(tmp_path, path, facts, cpu_bind, words):
    made = plan(path(srun="srun"), tmp_path, TWO, facts, launch_with="srun", cpu_bind=cpu_bind)
    assert shown(made, tmp_path).removesuffix(" DEAF").split()[-1] == words


@pytest.mark.parametrize(("threads", "each"), [(1, 3), (2, 6), (0, 8)])
def test_srun_reserves_the_cores_of_a_rank_as_slurm_counts_them(tmp_path, path, threads, each):
    env = path(srun="srun") | {"SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    facts = FRONTIER.model_copy(update={"threads_per_core": threads})
    assert f"--cpus-per-task={each}" in plan(env, tmp_path, TWO, facts).argv


@pytest.mark.parametrize(
    ("facts", "cpu_bind", "words"),
    [
        (Facts(starter="pals", cores=("0-3", "4-7")), "", "list:0-1:2-3:4-5:6-7"),
        (Facts(), "depth", "depth"),
        (Facts(), "", "none"),
    ],
)
def test_pals(tmp_path, path, facts, cpu_bind, words):
    made = plan(path(mpiexec="pals"), tmp_path, TWO, facts, launch_with="pals", cpu_bind=cpu_bind)
    assert shown(made, tmp_path) == (
        f"{tmp_path}/mpiexec --np=8 --ppn=4 --hostfile=run/hosts --genvall --cpu-bind={words} DEAF"
    ).replace(f"{tmp_path}/", "")
    assert made.files == {str(tmp_path / "run/hosts"): "n1\nn2\n"}


@pytest.mark.parametrize("version", ["Open MPI 4.1.4", "mpirun (Open MPI) 5.0.1"])
def test_openmpi_names_every_variable_for_its_daemons(tmp_path, path, version):
    env = path(mpirun=version) | {"NCCL_DEBUG": "INFO", "HOSTNAME": "login", "BASH_FUNC_ml%%": "() {", "RANK": "1"}
    made = plan(env, tmp_path, TWO, Facts(environment={"FI_PROVIDER": "cxi"}), launch_with="openmpi")
    words = shown(made, tmp_path)
    assert words.startswith("mpirun -n 8 --oversubscribe --hostfile run/hosts --map-by ppr:4:node -x ")
    assert words.endswith(" --bind-to none DEAF")
    named = set(re.findall(r"-x (\S+)", words))
    assert {"NCCL_DEBUG", "FI_PROVIDER", "MASTER_ADDR", "MASTER_PORT", "MEGADS_NUM_RANKS", "PATH"} <= named
    assert not {"HOSTNAME", "BASH_FUNC_ml%%", "RANK"} & named
    assert made.files == {str(tmp_path / "run/hosts"): "n1 slots=4\nn2 slots=4\n"}


@pytest.mark.parametrize(
    ("kind", "cpu_bind", "words", "env"),
    [
        ("mpich", "", "", {}),
        ("mpich", "socket", " -bind-to socket", {}),
        ("intel", "", "", {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0"}),
        ("intel", "none", "", {"I_MPI_PIN": "0"}),
        ("intel", "core", "", {"I_MPI_PIN_DOMAIN": "core"}),
    ],
)
def test_hydra(tmp_path, path, kind, cpu_bind, words, env):
    made = plan(path(mpiexec=kind), tmp_path, TWO, launch_with="mpich", cpu_bind=cpu_bind)
    assert shown(made, tmp_path) == f"mpiexec -n 8 -f run/hosts -ppn 4{words} DEAF"
    assert env.items() <= made.env.items()


def test_flux(tmp_path, path):
    whole = Allocation("flux", ("n1", "n2"), 4, "f3")
    made = plan(path(flux="flux"), tmp_path, whole)
    assert shown(made, tmp_path) == (
        "flux run --nodes=2 --ntasks=8 --exclusive --setopt=cpu-affinity=per-task --setopt=gpu-affinity=off "
        "--setopt=exit-on-error DEAF"
    )
    part = Allocation("flux", ("n1", "n2"), 2, "f3", spare=("n3",))
    made = plan(path(flux="flux"), tmp_path, part, cpu_bind="list:0-3:4-7")
    assert "--setopt=cpu-affinity=map:0-3;4-7 " in shown(made, tmp_path)
    assert "--requires=not hosts:n3 " in shown(made, tmp_path) or "--requires=hosts:n1,n2 " in shown(made, tmp_path)


def test_jsrun(tmp_path, path):
    made = plan(path(jsrun="jsrun"), tmp_path, Allocation("lsf", ("n1", "n2"), 4, "5"))
    assert shown(made, tmp_path) == (
        "jsrun --nrs=2 --rs_per_host=1 --tasks_per_rs=4 --cpu_per_rs=ALL_CPUS --gpu_per_rs=ALL_GPUS "
        "--launch_distribution=packed --bind=none DEAF"
    )
    with pytest.raises(LaunchError, match="7 do not divide by 4"):
        plan(path(), tmp_path, Allocation("lsf", ("n1", "n2"), 4, "5", num_ranks=7))


@pytest.mark.mpi
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("starter", ["openmpi", "mpich", "torchrun", "local"])
def test_ranks_are_bound_for_real(tmp_path, starter):
    first, second = sorted(os.sched_getaffinity(0))[:2]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert _run(starter, f"list:{first}:{second}", env, tmp_path) == [f"[{first}] 2", f"[{second}] 2"]
    if starter != "torchrun":
        assert len(eval(_run(starter, "none", env, tmp_path)[0].rpartition(" ")[0])) > 1


@pytest.mark.mpi
@pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="needs MPICH")
def test_hydra_puts_ranks_on_hosts_in_blocks(tmp_path, monkeypatch):
    """Its fork launcher takes this host for every host of the list."""
    monkeypatch.setattr(starter_module, "master_address", lambda hosts, facts, further: hosts[0])
    env = {"PATH": os.environ["PATH"], "HYDRA_LAUNCHER": "fork"}
    run = RunConfig(launch=LaunchConfig(launch_with="mpich"))
    command = ["sh", "-c", "echo $PMI_RANK $PMI_SIZE $MPI_LOCALRANKID $MPI_LOCALNRANKS $MASTER_ADDR"]
    made = plan_launch(run, Allocation("none", ("n1", "n2"), 2, num_ranks=3), command, env, folder=tmp_path)
    assert _seen(made, env) == ["0 3 0 2 n1", "1 3 1 2 n1", "2 3 0 1 n1"]


@pytest.mark.mpi
@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Open MPI")
def test_openmpi_gives_its_ranks_on_other_hosts_the_environment(tmp_path, monkeypatch):
    """An ssh that runs here what it should run there, in an environment of its own.

    Two daemons of a host share what hosts do not: their folder, which both make, and a topology that each maps at the
    same address. Each of the two ended one start of some seventy.
    """
    monkeypatch.setattr(starter_module, "master_address", lambda hosts, facts, further: hosts[0])
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done; shift\n'
        'exec env -i HOME="$HOME" TMPDIR="$(mktemp -dp "${0%/*}")" OMPI_MCA_rtc_hwloc_vmhole=none PATH=/usr/bin:/bin '
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        'sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMPI_MCA_plm_rsh_agent": str(ssh), "MINE": "two words"}
    run = RunConfig(launch=LaunchConfig(launch_with="openmpi"))
    command = ["sh", "-c", "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $MASTER_ADDR $MINE $FABRIC"]
    allocation = Allocation("none", ("n1", "n2"), 2, num_ranks=3)
    facts = Facts(environment={"FABRIC": "fast"})
    made = plan_launch(run, allocation, command, env, facts=facts, folder=tmp_path)
    assert _seen(made, env) == [f"{rank} n1 two words fast" for rank in ("0 0", "1 1", "2 0")]
