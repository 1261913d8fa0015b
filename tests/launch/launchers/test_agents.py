"""Launchers of one host, and agents on several."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.errors import LaunchError
from megads.launch.launchers.agents import _refuse_too_many_hosts
from megads.launch.schedulers.allocation import Allocation
from tests.launch.launchers.helpers import FRONTIER, TWO, many, plan, plan_here, shown


def test_the_machines_options_go_to_its_own_starter(tmp_path, path):
    facts = Facts(starter="srun", starter_args=("--gpus-per-task=1", "--gpu-bind=closest"))
    env = path(srun="srun", mpirun="openmpi")
    assert shown(plan(env, tmp_path, TWO, facts), tmp_path).endswith("--gpus-per-task=1 --gpu-bind=closest DEAF")
    assert "--gpus-per-task" not in shown(plan(env, tmp_path, TWO, facts, launch_with="openmpi"), tmp_path)


@pytest.mark.parametrize("agent", ["torchrun", "deepspeed"])
def test_ranks_of_an_agent_see_all_devices_and_sit_near_their_own(tmp_path, path, agent):
    env = path(srun="srun") | {"SLURM_JOB_CPUS_PER_NODE": "32(x2)"}
    made = plan(env, tmp_path, TWO, FRONTIER, launch_with=agent)
    words = " ".join(made.argv)
    assert "--gpus-per-task=4" in words
    assert "--gpus-per-task=1" not in words
    assert "--cpus-per-task=12" in words  # the cores that ranks may use, not the job's hardware threads
    assert "for c in 13-15 9-11 1-3 5-7;" in words


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
    monkeypatch.setattr("megads.launch.launchers.agents.LONGEST_WORD", len(word))
    call = SimpleNamespace(allocation=many(100))
    _refuse_too_many_hosts(call, 8)
    monkeypatch.setattr("megads.launch.launchers.agents.LONGEST_WORD", len(word) - 1)
    with pytest.raises(LaunchError, match=f"one argument of {len(word)} bytes"):
        _refuse_too_many_hosts(call, 8)


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


def test_direct_refuses_several_ranks():
    with pytest.raises(LaunchError, match=r"LAUNCH_WITH=direct starts one rank and this run has 2; use LAUNCH_WITH="):
        plan_here("direct", 2)
