"""Ranks under a real SLURM of two nodes, in every way in which a job starts processes."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm import Slurm

ROOT_ALLOWED = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
SHOW = f"{sys.executable} {Path(__file__).parent / 'show_ranks.py'} --name"

# A job of 2 x 2 tasks. The plain python is the one that would wait for three others.
JOB = f"""
{SHOW} plain
srun {SHOW} srun
srun -N2 -n2 {SHOW} small
srun -N1 -n1 {SHOW} smallest
srun -N2 -n3 {SHOW} uneven
srun -m cyclic {SHOW} cyclic
srun -m cyclic -N2 -n3 {SHOW} uneven-cyclic
srun --mpi=pmi2 {SHOW} pmi2
srun --mpi=cray_shasta {SHOW} shasta
RANK=5 WORLD_SIZE=8 srun {SHOW} stale
srun bash -c '{SHOW} in-shell'
"""
MPI = f"""
{ROOT_ALLOWED}
mpirun.openmpi -np 4 {SHOW} openmpi
mpirun.openmpi -np 3 --map-by node {SHOW} openmpi-cyclic
mpiexec.hydra -n 4 {SHOW} hydra
mpiexec.hydra -ppn 1 -n 2 {SHOW} hydra-one
"""

TWO_BY_TWO = ((0, 4, 0, 2, "0"), (1, 4, 1, 2, "0"), (2, 4, 0, 2, "1"), (3, 4, 1, 2, "1"))
CYCLIC = ((0, 4, 0, 2, "0"), (1, 4, 0, 2, "1"), (2, 4, 1, 2, "0"), (3, 4, 1, 2, "1"))
ONE_EACH = ((0, 2, 0, 1, "0"), (1, 2, 0, 1, "1"))
ALONE = ((0, 1, 0, 1, "0"),)


def shown(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return by name the ranks that a job's output shows, ordered; other lines are skipped."""
    found = defaultdict(list)
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            assert "error" not in row, row
            found[row["name"]].append(row)
    return {name: sorted(rows, key=lambda row: row["rank"]) for name, rows in found.items()}


def places(rows: list[dict[str, Any]]) -> tuple[tuple[int, int, int, int, str], ...]:
    return tuple((row["rank"], row["world_size"], row["local_rank"], row["local_size"], row["node"]) for row in rows)


def check_by_node(rows: list[dict[str, Any]]) -> None:
    """Hold the local ranks against where SLURM says that the ranks are, for every layout."""
    sizes, seen = Counter(row["node"] for row in rows), Counter[str]()
    for rank, row in enumerate(rows):
        assert (row["rank"], row["world_size"]) == (rank, len(rows))
        assert (row["local_rank"], row["local_size"]) == (seen[row["node"]], sizes[row["node"]])
        seen[row["node"]] += 1
    assert len(sizes) == 2


@pytest.fixture(scope="module")
def job(slurm: Slurm) -> dict[str, list[dict[str, Any]]]:
    return shown(slurm.script(JOB, "-N2", "--ntasks-per-node=2", name="ranks.sh"))


@pytest.fixture(scope="module")
def mpi_job(slurm: Slurm) -> dict[str, list[dict[str, Any]]]:
    return shown(slurm.script(MPI, "-N2", "--ntasks-per-node=2", name="mpi.sh"))


def test_python_in_a_batch_script_is_one_rank(job):
    assert places(job["plain"]) == ALONE
    assert job["plain"][0]["family"] == "single"


@pytest.mark.parametrize("name", ["srun", "pmi2", "shasta", "stale", "in-shell"])
def test_srun_in_a_batch_script(job, name):
    assert places(job[name]) == TWO_BY_TWO
    assert {row["family"] for row in job[name]} == {"SLURM"}


def test_a_step_smaller_than_its_job(job):
    assert places(job["small"]) == ONE_EACH
    assert places(job["smallest"]) == ALONE


def test_a_cyclic_distribution(job):
    assert places(job["cyclic"]) == CYCLIC


@pytest.mark.parametrize("name", ["uneven", "uneven-cyclic"])
def test_more_tasks_on_one_node_than_on_the_other(job, name):
    assert len(job[name]) == 3
    check_by_node(job[name])


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "family"), [("openmpi", "Open MPI"), ("hydra", "MPICH")])
def test_mpirun_inside_an_allocation(mpi_job, name, family):
    assert places(mpi_job[name]) == TWO_BY_TWO
    assert {row["family"] for row in mpi_job[name]} == {family}


@pytest.mark.mpi
def test_mpirun_with_fewer_ranks_or_another_order_than_the_job(mpi_job):
    assert places(mpi_job["hydra-one"]) == ONE_EACH
    assert len(mpi_job["openmpi-cyclic"]) == 3
    check_by_node(mpi_job["openmpi-cyclic"])


def test_srun_without_a_job(slurm):
    done = slurm.run("srun", "-N2", "--ntasks-per-node=2", *SHOW.split(), "direct")
    assert places(shown(done.stdout)["direct"]) == TWO_BY_TWO


def test_salloc_with_a_command(slurm):
    done = slurm.run("salloc", "-N2", "--ntasks-per-node=2", "bash", "-c", f"{SHOW} plain; srun {SHOW} srun")
    found = shown(done.stdout)
    # The command of salloc runs where salloc was called, on no node.
    assert places(found["plain"]) == ((0, 1, 0, 1, ""),)
    assert places(found["srun"]) == TWO_BY_TWO


def test_the_shell_of_salloc_on_the_first_node(slurm):
    """Many sites start it as an interactive step, with a terminal that each srun in it hears of."""
    shell = slurm.folder / "shell.sh"
    shell.write_text(f"#!/bin/bash\n{SHOW} plain\n{SHOW} piped </dev/null | cat\nsrun {SHOW} srun\n")
    shell.chmod(0o755)
    found = shown(slurm.in_terminal("salloc", "-N2", "--ntasks-per-node=2", env={"SHELL": str(shell)}))
    assert places(found["plain"]) == places(found["piped"]) == ALONE
    assert places(found["srun"]) == TWO_BY_TWO


def test_the_shell_of_srun_pty(slurm):
    """Rank 0 of 2 by its variables, but a shell: a python in it would wait for the other forever."""
    typed = f"{SHOW} plain; {SHOW} piped </dev/null | cat; srun --overlap -N2 -n2 {SHOW} srun"
    found = shown(slurm.in_terminal("srun", "-N2", "-n2", "--pty", "bash", "-c", typed))
    assert places(found["plain"]) == places(found["piped"]) == ALONE
    assert places(found["srun"]) == ONE_EACH
