from __future__ import annotations

import pytest

from megads.cluster.hosts import this_host
from megads.config.schema import LaunchConfig, ParallelConfig, RunConfig
from megads.errors import LaunchError
from megads.launch import scheduler
from megads.launch.scheduler import find_allocation

CPU = {"MEGADS_DEVICE": "cpu"}


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(scheduler, "count_accelerators", lambda env: 0 if env.get("MEGADS_DEVICE") == "cpu" else 4)


def test_a_cpu_host_gets_as_many_ranks_as_the_layout_fills():
    run = RunConfig(parallel=ParallelConfig(tensor=2, pipeline=3, sequence=1, data=2))
    found = find_allocation(run, CPU)
    assert (found.scheduler, found.hosts, found.world_size) == ("none", (this_host(),), 12)
    assert find_allocation(RunConfig(parallel=ParallelConfig(tensor=2)), CPU).world_size == 2


@pytest.mark.usefixtures("four_devices")
def test_a_host_with_accelerators_uses_them_all():
    run = RunConfig(parallel=ParallelConfig(tensor=2))
    assert find_allocation(run, {}).world_size == 4
    assert find_allocation(run, CPU).world_size == 2
    assert find_allocation(RunConfig(launch=LaunchConfig(ranks_per_host=3)), {}).world_size == 3


@pytest.mark.usefixtures("four_devices")
def test_more_ranks_than_accelerators_are_refused():
    run = RunConfig(launch=LaunchConfig(ranks_per_host=5))
    with pytest.raises(LaunchError, match=r"NGPU_PER_HOST=5: this host shows 4 accelerators.*at most 4"):
        find_allocation(run, {})
    assert find_allocation(run, CPU).world_size == 5


def test_generic_without_accelerator_says_so(monkeypatch):
    monkeypatch.setattr(scheduler, "count_accelerators", lambda env: 0)
    with pytest.raises(LaunchError, match="MACHINE=cpu"):
        find_allocation(RunConfig(machine="generic"), {})
    assert find_allocation(RunConfig(machine="generic"), CPU).world_size == 1


def test_one_host_of_a_scheduler_is_like_any_host(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text(f"{this_host()}.domain\n{this_host()}.domain\n")
    found = find_allocation(RunConfig(), CPU | {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(nodes)})
    assert (found.world_size, found.job_id) == (1, "7.pbs")
    assert find_allocation(RunConfig(), CPU | {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1"}).job_id == "9"
    nodes.write_text("localhost slots=4  # me\n")
    assert find_allocation(RunConfig(launch=LaunchConfig(hostfile=str(nodes))), CPU).world_size == 1


@pytest.mark.parametrize(
    ("hosts", "env", "message"),
    [
        ("a\nb\na\n", {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": "{file}"}, r"PBS job 7.pbs has 2 hosts; .*not supported"),
        ("", {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3"}, r"SLURM job 9 has 3 hosts; .*allocation of one"),
        ("elsewhere\n", {"PBS_JOBID": "7", "PBS_NODEFILE": "{file}"}, r"names elsewhere but this is"),
        ("# none\n", {"PBS_JOBID": "7", "PBS_NODEFILE": "{file}"}, r"PBS_NODEFILE=.*lists no host"),
        ("", {"PBS_JOBID": "7", "PBS_NODEFILE": "/no/such"}, r"PBS_NODEFILE=/no/such: No such file"),
    ],
)
def test_other_hosts_are_refused_in_one_line(tmp_path, hosts, env, message):
    file = tmp_path / "nodes"
    file.write_text(hosts)
    env = {name: value.format(file=file) for name, value in env.items()}
    with pytest.raises(LaunchError, match=message) as caught:
        find_allocation(RunConfig(), CPU | env)
    assert "\n" not in str(caught.value)


def test_a_host_file_of_several_hosts_is_refused(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a\nb\n")
    with pytest.raises(LaunchError, match=r"HOSTFILE=.* has 2 hosts"):
        find_allocation(RunConfig(launch=LaunchConfig(hostfile=str(file))), CPU)
