"""The command of every starter, given hosts: exact words, and real starters where this host has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import Allocation
from megads.launch.starters import command as starter_module
from megads.launch.starters.agents import _refuse_too_many_hosts
from megads.launch.starters.command import plan_launch
from megads.launch.starters.plan import LaunchPlan

RANK = ("python", "rank.py", "a b")
DEAF = ("sh", "-c", 'trap "" USR1; exec "$@"', "sh")
SAY = {
    "openmpi": "mpirun (Open MPI) 5.0.1",
    "mpich": "HYDRA build details:",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.9",
    "pals": "mpiexec version 1.4.0 (PALS)",
}
JOB = ("SLURM_JOB_ID", "FLUX_URI", "LSB_JOBID")
UNKNOWN = Facts()
TWO = Allocation("none", ("n1", "n2"), 4, "7")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a PATH on which are the programs that a test names, answering as their kind does."""
    monkeypatch.setattr(starter_module, "master_address", lambda hosts, facts, further: hosts[0])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "taskset").symlink_to("/bin/true")

    def make(**programs: str) -> dict[str, str]:
        for name, kind in programs.items():
            file = tmp_path / name
            file.write_text(f"#!/bin/sh\necho '{SAY.get(kind, kind)}'\n")
            file.chmod(0o755)
        return {"PATH": str(tmp_path), "MEGADS_DEVICE": "cpu"} | dict.fromkeys(JOB, "7")

    return make


def plan(
    env: dict[str, str], folder: Path, allocation: Allocation, facts: Facts = UNKNOWN, **launch: object
) -> LaunchPlan:
    run = RunConfig(launch=LaunchConfig(**launch))
    return plan_launch(run, allocation, RANK, env, facts=facts, folder=folder / "run", python="py")


def shown(made: LaunchPlan, folder: Path) -> str:
    """Return the command up to the rank's own words, with the folder skipped."""
    words = list(made.argv)
    assert words[-3:] == list(RANK)
    return " ".join(words[:-3]).replace(f"{folder}/", "").replace(" ".join(DEAF), "DEAF")


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


def test_the_machines_options_go_to_its_own_starter(tmp_path, path):
    facts = Facts(starter="srun", starter_args=("--gpus-per-task=1", "--gpu-bind=closest"))
    env = path(srun="srun", mpirun="openmpi")
    assert shown(plan(env, tmp_path, TWO, facts), tmp_path).endswith("--gpus-per-task=1 --gpu-bind=closest DEAF")
    assert "--gpus-per-task" not in shown(plan(env, tmp_path, TWO, facts, launch_with="openmpi"), tmp_path)


FRONTIER = Facts(
    starter="srun",
    starter_args=("--gpus-per-task=1", "--gpu-bind=closest"),
    agent_args=("--gpus-per-task=4",),
    cores=("0-3", "4-7", "8-11", "12-15"),
    reserved_cores="0,4,8,12",
    agent_cores=("12-15", "8-11", "0-3", "4-7"),
    threads_per_core=1,
)


@pytest.mark.parametrize("agent", ["torchrun", "deepspeed"])
def test_ranks_of_an_agent_see_all_devices_and_sit_near_their_own(tmp_path, path, agent):
    env = path(srun="srun") | {"SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    made = plan(env, tmp_path, TWO, FRONTIER, launch_with=agent)
    words = " ".join(made.argv)
    assert "--gpus-per-task=4" in words
    assert "--gpus-per-task=1" not in words
    assert "--cpus-per-task=12" in words  # the cores that ranks may use, not the job's hardware threads
    assert "for c in 13-15 9-11 1-3 5-7;" in words


@pytest.mark.parametrize(("threads", "each"), [(1, 3), (2, 6), (0, 8)])
def test_srun_reserves_the_cores_of_a_rank_as_slurm_counts_them(tmp_path, path, threads, each):
    env = path(srun="srun") | {"SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    facts = FRONTIER.model_copy(update={"threads_per_core": threads})
    assert f"--cpus-per-task={each}" in plan(env, tmp_path, TWO, facts).argv


def many(count: int) -> Allocation:
    return Allocation("slurm", tuple(f"frontier{number:05}" for number in range(count)), 8, "7")


def test_deepspeed_is_refused_for_more_hosts_than_its_one_word_holds(tmp_path, path):
    env = path(srun="srun")
    plan(env, tmp_path, many(1900), launch_with="deepspeed")
    with pytest.raises(
        LaunchError, match=r"^LAUNCH_WITH=deepspeed on 4000 hosts: .* one argument of \d+ bytes, and Linux "
    ):
        plan(env, tmp_path, many(4000), launch_with="deepspeed")


def test_the_word_that_deepspeed_makes_is_as_long_as_was_reckoned(monkeypatch):
    """Its own runner is asked: what it would start has the word that the refusal is about."""
    from deepspeed.launcher.runner import encode_world_info

    hosts = many(100).hosts
    word = "--world_info=" + encode_world_info({host: list(range(8)) for host in hosts})
    monkeypatch.setattr("megads.launch.starters.agents.LONGEST_WORD", len(word))
    call = SimpleNamespace(allocation=many(100))
    _refuse_too_many_hosts(call, 8)
    monkeypatch.setattr("megads.launch.starters.agents.LONGEST_WORD", len(word) - 1)
    with pytest.raises(LaunchError, match=f"one argument of {len(word)} bytes"):
        _refuse_too_many_hosts(call, 8)


def test_a_command_that_linux_would_not_start_is_refused_by_name(tmp_path, path):
    spare = tuple(f"host{number:05}" for number in range(20000, 40000))
    allocation = Allocation("flux", many(20000).hosts, 1, "f7", spare)
    with pytest.raises(LaunchError, match=r"^LAUNCH_WITH=flux needs an argument of \d+ bytes \(--requires="):
        plan(path(flux="flux") | {"FLUX_URI": "x"}, tmp_path, allocation, launch_with="flux")


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


@pytest.mark.parametrize("name", ["torchrun", "deepspeed"])
@pytest.mark.parametrize(
    ("programs", "scheduler", "outer", "variable"),
    [
        (
            {"srun": "srun"},
            "slurm",
            "srun --nodes=2 --ntasks=2 --distribution=block --ntasks-per-node=1",
            "SLURM_PROCID",
        ),
        ({"mpiexec": "pals"}, "pbs", "mpiexec --np=2 --ppn=1", "PALS_RANKID"),
        ({"mpirun": "openmpi"}, "none", "mpirun -n 2 --oversubscribe", "OMPI_COMM_WORLD_RANK"),
        ({"mpiexec": "mpich"}, "pbs", "mpiexec -n 2 -f run/hosts -ppn 1", "PMI_RANK"),
    ],
)
def test_agents_are_started_once_on_each_host(tmp_path, path, name, programs, scheduler, outer, variable):
    allocation = Allocation(scheduler, ("n1", "n2"), 4, "7")
    made = plan(path(**programs), tmp_path, allocation, launch_with=name)
    words = shown(made, tmp_path)
    assert words.startswith(outer)
    assert f"n=${variable}; unset {variable} " in words
    module = {"torchrun": "torch.distributed.run --nnodes=2", "deepspeed": "deepspeed.launcher.runner"}[name]
    assert f'exec "$0" -m {module}' in words
    assert '--node_rank="$n" "$@" py ' in words
    assert made.env["MEGADS_NUM_RANKS"] == "8"
    if name == "torchrun":
        assert "--nproc-per-node=4 --master-addr=n1" in words
    else:
        assert made.files[str(tmp_path / "run/hosts.deepspeed")] == "n1 slots=4\nn2 slots=4\n"


def test_agents_need_a_way_to_the_other_hosts_and_full_ones(tmp_path, path):
    with pytest.raises(LaunchError, match=r"LAUNCH_WITH=torchrun: the run is on n1 too, and nothing on PATH"):
        plan(path(), tmp_path, TWO, launch_with="torchrun")
    uneven = Allocation("none", ("n1", "n2"), 4, num_ranks=7)
    with pytest.raises(LaunchError, match=r"starts 4 ranks on each of 2 hosts, and 7 do not fill them"):
        plan(path(mpirun="openmpi"), tmp_path, uneven, launch_with="torchrun")


def test_deepspeed_on_this_host_keeps_a_mask_of_devices(tmp_path, path):
    here = Allocation("none", (this_host(),), 2)
    file = str(tmp_path / "run/hosts.deepspeed")
    made = plan(path(), tmp_path, here, launch_with="deepspeed")
    assert shown(made, tmp_path).startswith(
        "py -m deepspeed.launcher.runner --hostfile=run/hosts.deepspeed --no_ssh_check --master_addr="
    )
    assert made.files[file] == f"{this_host()} slots=2\n"
    made = plan(path() | {"CUDA_VISIBLE_DEVICES": "5,7"}, tmp_path, here, launch_with="deepspeed")
    assert f"--include={this_host()}:5,7" in made.argv
    assert made.files[file] == f"{this_host()} slots=8\n"


def test_direct_is_for_this_host(tmp_path, path):
    with pytest.raises(LaunchError, match=r"LAUNCH_WITH=direct starts ranks on this host \(.*\), and the run is on n1"):
        plan(path(), tmp_path, Allocation("none", ("n1",), 1), launch_with="direct")


def test_words_for_binding_that_a_starter_does_not_know_are_refused(tmp_path, path):
    here = Allocation("none", (this_host(),), 2)
    with pytest.raises(LaunchError, match=r"CPU_BIND=depth: local has no such option; use CPU_BIND=list:"):
        plan(path(), tmp_path, here, cpu_bind="depth")
    with pytest.raises(LaunchError, match=r"has 1 core lists for 2 ranks"):
        plan(path(), tmp_path, here, cpu_bind="list:0-3")
    for wrong in ("list:a:b", "list:3-0:4", "list:0-99999999999:1", "list:", " "):
        with pytest.raises(LaunchError, match=r"expected core lists such as"):
            plan(path(), tmp_path, here, cpu_bind=wrong)


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


@pytest.mark.parametrize(
    ("version", "help_text"),
    [("mpiexec version 1.2.12", "--no-vni  Do not allocate a VNI"), ("aprun PALS 1.3", ""), ("mpiexec 1.6", "PALS")],
)
def test_pals_is_told_by_what_it_says(tmp_path, path, version, help_text):
    env = path()
    (tmp_path / "mpiexec").write_text(
        f"#!/bin/sh\ncase $1 in --help) echo '{help_text}';; --version) echo '{version}';; esac\n"
    )
    (tmp_path / "mpiexec").chmod(0o755)
    assert plan(env, tmp_path, TWO, launch_with="pals").argv[0].endswith("mpiexec")
    with pytest.raises(LaunchError, match="no MPICH mpiexec"):
        plan(env, tmp_path, TWO, launch_with="mpich")


@pytest.mark.parametrize(("name", "variable"), list(zip(("srun", "flux", "jsrun"), JOB, strict=True)))
def test_a_schedulers_starter_is_for_its_jobs(tmp_path, path, name, variable):
    env = path(**{name: name})
    del env[variable]
    with pytest.raises(LaunchError, match=rf"LAUNCH_WITH={name} starts ranks inside an? .*, and {variable} is not set"):
        plan(env, tmp_path, TWO, launch_with=name)


@pytest.mark.parametrize("name", ["srun", "flux", "jsrun", "pals"])
def test_a_starter_that_is_not_installed_names_others(tmp_path, path, name):
    with pytest.raises(LaunchError, match=rf"LAUNCH_WITH={name}: no .*on PATH; .*LAUNCH_WITH="):
        plan(path(), tmp_path, TWO, launch_with=name)


def test_files_are_written_privately_and_never_through_a_link(tmp_path):
    made = LaunchPlan(("true",), {}, files={str(tmp_path / "new/hosts"): "n1\n"})
    made.write_files()
    assert (tmp_path / "new/hosts").read_text() == "n1\n"
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    (tmp_path / "new/hosts").unlink()
    (tmp_path / "new/hosts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="the launcher reads its hosts"):
        made.write_files()
    assert not (tmp_path / "elsewhere").exists()


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
    """An ssh that runs here what it should run there, in an environment of its own."""
    monkeypatch.setattr(starter_module, "master_address", lambda hosts, facts, further: hosts[0])
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done; shift\n'
        'exec env -i HOME="$HOME" PATH=/usr/bin:/bin OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 '
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
