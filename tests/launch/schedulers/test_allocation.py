"""Schedulers that are scripts, and what they are asked."""

from __future__ import annotations

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, ParallelConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers import allocation
from megads.launch.schedulers.allocation import find_allocation
from tests.launch.schedulers.helpers import CPU, PBS, SLURM


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(allocation, "count_accelerators", lambda env: 0 if env.get("MEGADS_DEVICE") == "cpu" else 4)


LSF = {"LSB_JOBID": "5", "LSB_DJOB_HOSTFILE": "{file}"}


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n2"}


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
    monkeypatch.setattr(allocation, "count_accelerators", lambda env: 0)
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
    ("text", "env", "expected"),
    [
        ("a\na\nb\nb\n", PBS, ("pbs", ("a", "b"), "7.pbs")),
        ("", SLURM, ("slurm", ("n1", "n2", "n3"), "9")),
        ("", SLURM | STEP | {"SLURM_STEP_NUM_TASKS": "1"}, ("slurm", ("n2",), "9")),
        ("", SLURM | STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PTY_PORT": "1"}, ("slurm", ("n2",), "9")),
        ("", SLURM | STEP | {"SLURM_STEP_ID": "4294967290"}, ("slurm", ("n1", "n2", "n3"), "9")),
        ("", {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1"}, ("slurm", (this_host(),), "9")),
        ("x\nx\ny\n", LSF, ("lsf", ("x", "y"), "5")),
    ],
)
def test_hosts_come_from_the_scheduler(tmp_path, text, env, expected):
    file = tmp_path / "nodes"
    file.write_text(text)
    env = {name: value.format(file=file) for name, value in env.items()}
    found = find_allocation(RunConfig(), CPU | env)
    assert (found.scheduler, found.hosts, found.job_id) == expected
    assert found.spare == ()


def test_nhosts_takes_the_first_and_leaves_the_rest_as_spare():
    found = find_allocation(RunConfig(launch=LaunchConfig(num_hosts=2)), CPU | SLURM)
    assert (found.hosts, found.spare) == (("n1", "n2"), ("n3",))
    with pytest.raises(LaunchError, match=r"NHOSTS=4: SLURM job 9 has 3 hosts; use at most 3"):
        find_allocation(RunConfig(launch=LaunchConfig(num_hosts=4)), CPU | SLURM)


def test_a_host_file_wins_over_the_scheduler(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("b slots=4\n# not this: a\n\nc.domain slots=4\n")
    run = RunConfig(launch=LaunchConfig(hostfile=str(file)))
    assert find_allocation(run, CPU).hosts == ("b", "c.domain")
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\nc\n")
    assert find_allocation(run, CPU | {"PBS_JOBID": "7", "PBS_NODEFILE": str(nodes)}).hosts == ("b", "c.domain")


def test_hosts_of_slurm_are_in_its_order_and_spelling(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("n3.cluster\nn1\n")
    run = RunConfig(launch=LaunchConfig(hostfile=str(file)))
    assert find_allocation(run, CPU | SLURM).hosts == ("n1", "n3")
    file.write_text("n1\nn4\n")
    with pytest.raises(LaunchError, match=r"HOSTFILE=.* names n4, which SLURM job 9 does not have"):
        find_allocation(run, CPU | SLURM)


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("", {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3"}, r"SLURM job 9 has 3 hosts and SLURM_JOB_NODELIST"),
        ("# none\n", PBS, r"PBS_NODEFILE=.*lists no host"),
        (
            "",
            {"PBS_JOBID": "7", "PBS_NODEFILE": "/no/such"},
            r"PBS_NODEFILE=/no/such: no such file .* has ended: unset",
        ),
        (
            "",
            SLURM | STEP | {"SLURM_STEP_NUM_TASKS": "3"},
            r"SLURM_STEP_NUM_TASKS=3\); start megads once",
        ),
        ("", {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, r"OMPI_COMM_WORLD_RANK=1.*not on every rank"),
        ("", {"PMI_SIZE": "2", "PMI_RANK": "0"}, "unset PMI_RANK"),
        ("", {"PMI_SIZE": "2", "PMI_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"}, "FLUX_TASK_RANK PMI_RA"),
        ("", {"PALS_RANKID": "1", "PALS_LOCAL_SIZE": "1"}, "one rank of several itself"),
        ("", {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, r"\(RANK=0, WORLD_SIZE=2\)"),
        ("", {"RANK": "1", "WORLD_SIZE": "2", "CROSS_RANK": "0"}, r"\(RANK=1, WORLD_SIZE=2\)"),
        ("", {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-"}, r"SLURM_JOB_NODELIST='n\[1-': its brackets"),
    ],
)
def test_what_can_not_be_an_allocation_is_refused_in_one_line(tmp_path, text, env, message):
    file = tmp_path / "nodes"
    file.write_text(text)
    env = {name: value.format(file=file) for name, value in env.items()}
    with pytest.raises(LaunchError, match=message) as caught:
        find_allocation(RunConfig(), CPU | env)
    assert "\n" not in str(caught.value)


def test_a_single_rank_of_a_launcher_may_launch():
    env = CPU | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    assert find_allocation(RunConfig(), env).world_size == 1


def test_what_people_leave_in_a_shell_makes_no_rank():
    env = CPU | {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}
    assert find_allocation(RunConfig(), env).world_size == 1


@pytest.mark.parametrize(
    ("parallel", "each"),
    [({"tensor": 3}, 1), ({"tensor": 6}, 2), ({"tensor": 2, "data": 6}, 4), ({"tensor": 1}, 1)],
)
def test_on_cpu_hosts_the_layout_is_spread(parallel, each):
    found = find_allocation(RunConfig(parallel=ParallelConfig(**parallel)), CPU | SLURM)
    assert (found.ranks_per_host, found.world_size) == (each, 3 * each)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"tensor": 4}, r"TP x PP x SP = 4 ranks do not spread evenly over 3 hosts; use NHOSTS=1 or 2, or set NGPU"),
        ({"tensor": 2, "data": 2}, r"TP x PP x SP x DP = 4 ranks do not spread"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(parallel, message):
    with pytest.raises(LaunchError, match=message):
        find_allocation(RunConfig(parallel=ParallelConfig(**parallel)), CPU | SLURM)
    given = RunConfig(parallel=ParallelConfig(**parallel), launch=LaunchConfig(ranks_per_host=4))
    assert find_allocation(given, CPU | SLURM).world_size == 12


@pytest.mark.usefixtures("four_devices")
def test_the_machine_says_how_many_ranks_a_host_takes():
    facts, here = Facts(ranks_per_host=12, device="intel"), SLURM | {"SLURMD_NODENAME": "n2"}
    assert find_allocation(RunConfig(), SLURM, facts).ranks_per_host == 12
    # On a host of the run the devices that are visible count, and a user may have masked some.
    assert find_allocation(RunConfig(), here, facts).ranks_per_host == 4
    assert find_allocation(RunConfig(launch=LaunchConfig(ranks_per_host=6)), SLURM, facts).ranks_per_host == 6
    with pytest.raises(LaunchError, match="this host shows 4 accelerators"):
        find_allocation(RunConfig(launch=LaunchConfig(ranks_per_host=6)), here, facts)


def test_a_login_node_without_accelerators_needs_to_be_told(monkeypatch):
    monkeypatch.setattr(allocation, "count_accelerators", lambda env: 0)
    with pytest.raises(LaunchError, match=r"machine x trains on accelerators.*set NGPU_PER_HOST"):
        find_allocation(RunConfig(machine="x"), SLURM, Facts(device="nvidia"))
    assert find_allocation(RunConfig(machine="x"), SLURM, Facts(device="nvidia", ranks_per_host=4)).world_size == 12
    with pytest.raises(LaunchError, match="none is visible here"):
        find_allocation(RunConfig(machine="x"), {}, Facts(device="nvidia", ranks_per_host=4))
