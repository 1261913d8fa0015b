"""Ranks from the variables of real launchers; the fixtures under recorded/ say which are measured."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from megads.cluster.ranks import UNKNOWN, RankInfo, find_ranks, tasks_per_node
from megads.errors import LaunchError
from tests.cluster.recorded import Recorded, recorded

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
ALONE = (0, 1, 0, 1, "single")


def ranks(env: dict[str, str], *, has_terminal: bool = False) -> tuple[int, int, int, int, str]:
    info = find_ranks(env, has_terminal=has_terminal)
    return (info.rank, info.world_size, info.local_rank, info.local_size, info.family)


def one(name: str, rank: int) -> dict[str, str]:
    """Return the recorded environment of one rank."""
    return next(each.env for each in recorded(name) if each.expected[0] == rank)


OPENMPI, HYDRA, SRUN, PALS = one("openmpi-4.1", 1), one("mpich-4.0", 1), one("srun-none", 1), one("pals-pmix", 13)


@pytest.mark.parametrize("case", recorded(), ids=lambda case: f"{case.name}-{case.expected[0]}")
def test_every_recorded_process_gets_its_rank(case: Recorded):
    env = dict(case.env)
    if case.expected[1] == 0:
        # The launcher gives no size: megads launch does.
        env["MEGADS_NUM_RANKS"] = "24"
    expected = (case.expected[0], case.expected[1] or 24, *case.expected[2:])
    # In the two shells of srun --pty a user types; their terminal is what tells them from ranks.
    assert ranks(env, has_terminal=case.name.startswith("slurm-pty")) == expected


@pytest.mark.parametrize("name", sorted({each.name for each in recorded()}))
def test_a_launchers_file_holds_a_first_rank_and_no_two_alike(name):
    found = [each.expected[0] for each in recorded(name)]
    assert found[0] == 0
    assert len(set(found)) == len(found)


def test_pitfall_python_in_a_batch_script_is_one_rank():
    assert one("slurm-batch", 0)["SLURM_NTASKS"] == "4"
    assert ranks(one("slurm-batch", 0)) == ALONE


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "-6", "-5"])
def test_pitfall_the_shell_of_an_interactive_allocation_is_one_rank(step):
    env = one("slurm-interactive", 0)
    assert env["SLURM_STEP_ID"] == "4294967290"
    assert ranks(env | {"SLURM_STEP_ID": step}) == ALONE


def test_pitfall_a_terminals_shell_is_one_rank_and_what_srun_starts_in_it_are_ranks():
    shell, inner = one("slurm-pty", 0), one("srun-from-pty", 0)
    assert shell["SLURM_PTY_PORT"]
    assert inner["SLURM_PTY_PORT"]
    assert ranks(shell, has_terminal=True) == ALONE
    assert ranks(inner) == (0, 2, 0, 1, "SLURM")
    of_pmi2 = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_JOBID": "2.0"}
    assert ranks(shell | of_pmi2, has_terminal=True) == ALONE


def test_pitfall_a_step_smaller_than_its_job_counts_its_own_tasks():
    env = one("srun-small-step", 1)
    assert env["SLURM_NTASKS_PER_NODE"] == "2"
    assert ranks(env | {"SLURM_NTASKS": "16"}) == (1, 2, 0, 1, "SLURM")


@pytest.mark.parametrize("name", ["slurm-openmpi-4", "slurm-openmpi-5", "slurm-mpich-4", "slurm-intelmpi"])
def test_pitfall_under_mpirun_in_slurm_the_procid_is_the_node(name):
    env = one(name, 3)
    assert (env["SLURM_PROCID"], env["SLURM_LOCALID"]) == ("1", "0")
    assert ranks(env)[:4] == (3, 4, 1, 2)


@pytest.mark.parametrize("launcher", [OPENMPI, HYDRA, SRUN, PALS | {"MEGADS_NUM_RANKS": "24"}])
def test_pitfall_a_rank_left_in_the_shell_counts_for_nothing(launcher):
    assert ranks(launcher | {"RANK": "5", "WORLD_SIZE": "8"}) == ranks(launcher)


def test_pitfall_local_ranks_are_never_counted_from_the_rank():
    # Cyclic: rank 2 of 4 on two hosts is the second of the first host; uneven: rank 3 is alone on its host.
    assert ranks(one("srun-cyclic", 2)) == (2, 4, 1, 2, "SLURM")
    assert ranks(one("srun-from-interactive", 3)) == (3, 4, 0, 1, "SLURM")
    assert ranks({"RANK": "2", "WORLD_SIZE": "4"}) == (2, 4, UNKNOWN, 0, "RANK")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ALONE),
        ({"RANK": "", "WORLD_SIZE": ""}, ALONE),
        ({"RANK": "3"}, ALONE),
        (TORCHRUN, (5, 8, 1, 4, "torchrun")),
        # torchrun under srun or mpirun, one agent a host.
        (TORCHRUN | SRUN, (5, 8, 1, 4, "torchrun")),
        (TORCHRUN | OPENMPI, (5, 8, 1, 4, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 4, 1, 2, "RANK")),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (1, 4, 1, 0, "RANK")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, "RANK")),
        ({"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4"}, (3, 4, UNKNOWN, 0, "jsrun")),
        # A PMI starter that knows of no hosts, such as MPICH's gforker.
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "5"}, (1, 2, UNKNOWN, 0, "PMI")),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x", "MEGADS_NUM_RANKS": "2"}, (1, 2, UNKNOWN, 0, "PMIx")),
        # SLURM without the fields of the node.
        ({name: value for name, value in SRUN.items() if name != "SLURM_NODEID"}, (1, 3, 1, 0, "SLURM")),
        (SRUN | {"MEGADS_NUM_RANKS": "3"}, (1, 3, 1, 2, "SLURM")),
        # A shasta that gives a local rank but no size: srun's own numbers are whole.
        (SRUN | {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1"}, (1, 3, 1, 2, "SLURM")),
        (SRUN | {"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3, 1, 2, "SLURM")),
    ],
)
def test_further_environments(env, expected):
    assert ranks(env) == expected


def test_a_step_that_is_no_number_is_no_step():
    assert ranks({"SLURM_STEP_ID": "\N{SUPERSCRIPT TWO}", "SLURM_PROCID": "1"}) == (0, 1, 0, 1, "single")


def test_explicit_ranks_win_over_every_launcher():
    explicit = {"MEGADS_RANK": "1", "MEGADS_WORLD_SIZE": "3", "MEGADS_LOCAL_RANK": "0"}
    assert ranks(TORCHRUN | OPENMPI | SRUN | explicit) == (1, 3, 0, 0, "MEGADS_RANK")
    assert ranks(TORCHRUN | OPENMPI | SRUN | explicit | {"MEGADS_LOCAL_SIZE": "2"}) == (1, 3, 0, 2, "MEGADS_RANK")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MEGADS_RANK": "1"}, "set together; MEGADS_WORLD_SIZE is not"),
        ({"MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "2"}, "MEGADS_LOCAL_RANK is not"),
        ({"MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "0", "MEGADS_LOCAL_RANK": "0"}, "rank 0 of 0"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "1"}, "Open MPI says rank 1 of 1"),
        (one("openmpi-4.1", 0) | {"OMPI_COMM_WORLD_SIZE": "1"}, "rank 0 of 1, local rank 0 of 2"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "-1"}, "rank -1"),
        ({"RANK": "7", "WORLD_SIZE": "4"}, "RANK says rank 7 of 4; ranks count"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x99999999999)"}, "is not of the form"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "local rank 2 of 2"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "rank 1 of 2, local rank 1 of 3"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE='four'.*not an integer"),
        (SRUN | {"SLURM_NODEID": "2"}, "SLURM_NODEID=2 is not among the 2 nodes"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2*2"}, "is not of the form"),
        (OPENMPI | {"MEGADS_NUM_RANKS": "4"}, "Open MPI says rank 1 of 2, but 4 ranks were started.*LAUNCH_WITH"),
        ({"MEGADS_NUM_RANKS": "4"}, "4 ranks were started .* runs as a single rank"),
        (one("slurm-batch", 0) | {"MEGADS_NUM_RANKS": "4"}, "4 ranks were started"),
    ],
)
def test_incomplete_or_impossible_ranks_are_refused(env, message):
    with pytest.raises(LaunchError, match=message) as raised:
        find_ranks(env)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("env", [PALS, one("mpich-4.0-pmi-port", 1)])
def test_without_a_size_and_without_mpi4py_one_line_says_what_would_work(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(LaunchError, match="not the world size; start the ranks with megads launch or set"):
        find_ranks(env)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (one("openmpi-4.1", 0) | {"RANK": "5"}, "Open MPI says rank 0, the environment says RANK=5; using Open MPI"),
        (one("openmpi-4.1", 1) | {"RANK": "5"}, ""),
        # Left over and 0: rank 0 cannot see it.
        (one("openmpi-4.1", 1) | {"RANK": "0"}, "Open MPI says rank 1, the environment says RANK=0; using Open MPI"),
        (one("openmpi-4.1", 0) | {"RANK": "0"}, ""),
        (one("openmpi-4.1", 0) | {"PMI_RANK": "3", "MPI_LOCALRANKID": "0"}, "Open MPI says rank 0, MPICH says"),
        (one("jsrun-spectrum", 0), ""),
        # These number the hosts there, and differ rightly.
        (one("slurm-openmpi-4", 1), ""),
        (TORCHRUN | {"RANK": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ""),
    ],
)
def test_a_disagreement_is_told_by_one_rank(env, told, caplog):
    with caplog.at_level(logging.WARNING):
        find_ranks(env)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(told)
    assert not told or lines[0].startswith(told)


def test_without_an_argument_the_process_is_asked():
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OPENMPI
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    code = "from megads.cluster.ranks import find_ranks; print(find_ranks())"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == str(RankInfo(1, 2, 1, 2, "Open MPI"))


@pytest.mark.parametrize(("text", "expected"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("1,2", [1, 2])])
def test_tasks_per_node(text, expected):
    assert tasks_per_node(text) == expected
