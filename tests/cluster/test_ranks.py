"""Variables as recorded from real launchers (or, for those not at hand, as documented)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from megads.cluster.ranks import RankInfo, find_ranks, tasks_per_node
from megads.errors import LaunchError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"}
SRUN = BATCH | {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
PALS = {"PALS_RANKID": "7", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "6", "PALS_APID": "a", "PALS_NODEID": "1"}
ALONE = (0, 1, 0, 1, "single")


def ranks(env: dict[str, str]) -> tuple[int, int, int, int, str]:
    info = find_ranks(env)
    return (info.rank, info.world_size, info.local_rank, info.local_size, info.family)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ALONE),
        (TORCHRUN, (5, 8, 1, 4, "torchrun")),
        (OPENMPI, (3, 8, 1, 2, "Open MPI")),
        (HYDRA, (3, 4, 1, 2, "MPICH")),
        (SRUN, (3, 4, 1, 2, "SLURM")),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2,1,1", "SLURM_LOCALID": "0"}, (3, 4, 0, 1, "SLURM")),
        (PALS | {"PMI_RANK": "7", "PMI_SIZE": "12", "PMI_LOCAL_RANK": "1"}, (7, 12, 1, 6, "PALS")),
        (
            {name.replace("OMPI", "MV2"): value for name, value in OPENMPI.items() if name.startswith("OMPI")},
            (3, 8, 1, 2, "MVAPICH2"),
        ),
        (
            {name.replace("OMPI_COMM_WORLD", "JSM_NAMESPACE"): v for name, v in OPENMPI.items() if name[0] == "O"},
            (3, 8, 1, 2, "jsrun"),
        ),
        (
            {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2"},
            (3, 4, 1, 2, "Flux"),
        ),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 4, 1, 2, "RANK")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, "RANK")),
    ],
)
def test_each_launcher_alone(env, expected):
    assert ranks(env) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        # An sbatch script, and an interactive allocation, are not ranks.
        (BATCH, ALONE),
        (BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, ALONE),
        (BATCH | {"SLURM_STEP_ID": "-6", "SLURM_STEP_NUM_TASKS": "1"}, ALONE),
        # `srun --pty bash` with two tasks: a shell, not rank 0 of 2.
        (SRUN | {"SLURM_PTY_PORT": "4711"}, ALONE),
        # A step smaller than its job: NTASKS may be the job's.
        (SRUN | {"SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"}, (3, 4, 1, 2, "SLURM")),
        # mpirun inside a SLURM job: PROCID is the node there.
        (OPENMPI | SRUN | {"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, (3, 8, 1, 2, "Open MPI")),
        (HYDRA | SRUN | {"SLURM_PROCID": "1"}, (3, 4, 1, 2, "MPICH")),
        # srun --mpi=pmi2, pmix and (old) cray_shasta set a few variables of others.
        (SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_JOBID": "9.0"}, (3, 4, 1, 2, "SLURM")),
        (SRUN | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "x"}, (3, 4, 1, 2, "SLURM")),
        (SRUN | {"PALS_RANKID": "3", "PALS_APID": "1", "PALS_NODEID": "1"}, (3, 4, 1, 2, "SLURM")),
        # torchrun under srun, one agent a node.
        (TORCHRUN | SRUN, (5, 8, 1, 4, "torchrun")),
        # A stale RANK and WORLD_SIZE in the user's shell.
        (OPENMPI | {"RANK": "5", "WORLD_SIZE": "8"}, (3, 8, 1, 2, "Open MPI")),
        (SRUN | {"RANK": "5", "WORLD_SIZE": "8"}, (3, 4, 1, 2, "SLURM")),
        # Flux sets PMI_RANK as well; empty is unset.
        ({"RANK": "", "WORLD_SIZE": ""}, ALONE),
        ({"RANK": "3"}, ALONE),
    ],
)
def test_no_mixing_of_launchers(env, expected):
    assert ranks(env) == expected


def test_explicit_ranks_win_over_every_launcher():
    explicit = {"MEGADS_RANK": "1", "MEGADS_WORLD_SIZE": "3", "MEGADS_LOCAL_RANK": "0", "MEGADS_LOCAL_SIZE": "2"}
    assert ranks(TORCHRUN | OPENMPI | SRUN | explicit) == (1, 3, 0, 2, "MEGADS_RANK")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MEGADS_RANK": "1"}, "MEGADS_WORLD_SIZE"),
        ({"MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "2", "MEGADS_LOCAL_RANK": "0"}, "MEGADS_LOCAL_SIZE"),
        (PALS | {"PMIX_RANK": "7"}, "PALS set a rank but not PMI_SIZE"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI says rank 3 of 2"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "-1"}, "rank -1"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "local rank 2 of 2"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE='four'.*not an integer"),
        (SRUN | {"SLURM_NODEID": "2"}, "SLURM_NODEID=2 is not among the 2 nodes"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2*2"}, "is not of the form"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "without LOCAL_RANK"),
        (
            {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "5", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2"},
            "5 ranks do not divide",
        ),
    ],
)
def test_incomplete_or_impossible_ranks_are_refused(env, message):
    with pytest.raises(LaunchError, match=message):
        find_ranks(env)


def test_a_disagreement_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        find_ranks(OPENMPI | {"RANK": "5"})
        find_ranks(OPENMPI | {"PMI_RANK": "3", "MPI_LOCALRANKID": "0"})
    assert [record.getMessage() for record in caplog.records] == [
        "Open MPI says rank 3, the environment says RANK=5; using Open MPI"
    ]


def test_without_an_argument_the_process_is_asked():
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OPENMPI
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    code = "from megads.cluster.ranks import find_ranks; print(find_ranks())"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == str(RankInfo(3, 8, 1, 2, "Open MPI"))


@pytest.mark.parametrize(("text", "expected"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("1,2", [1, 2])])
def test_tasks_per_node(text, expected):
    assert tasks_per_node(text) == expected
