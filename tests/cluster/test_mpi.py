"""Ranks under real MPI launchers on this host, as their variables and as MPI itself say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.mpi

SHOW = [sys.executable, str(Path(__file__).parent / "show_ranks.py")]
OPENMPI = ["mpirun.openmpi", "--oversubscribe", "-np"]
HYDRA = ["mpiexec.hydra", "-n"]
LAUNCHERS = [pytest.param(OPENMPI, "Open MPI", id="openmpi"), pytest.param(HYDRA, "MPICH", id="hydra")]
ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture
def mpich(tmp_path: Path) -> dict[str, str]:
    """Give an environment in which mpi4py finds MPICH; Debian gives its library another name."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    found = re.search(r"libmpich\.so\.12 .*=> (\S+)", known)
    if found:
        (tmp_path / "libmpi.so.12").symlink_to(found[1])
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(tmp_path)}


def start(command: list[str], env: dict[str, str]) -> list[dict[str, Any]]:
    """Run a launcher and return what its ranks show, ordered where they have a rank."""
    done = subprocess.run(command, env=os.environ | ROOT_ALLOWED | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda row: row.get("rank", -1))


def numbers(rows: list[dict[str, Any]]) -> list[list[int]]:
    return [[row["rank"], row["world_size"], row["local_rank"], row["local_size"]] for row in rows]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("launcher", "family"), LAUNCHERS)
def test_ranks_agree_with_mpi(launcher, family, size, mpich):
    env = mpich if launcher is HYDRA else {"MPI4PY_MPIABI": "openmpi"}
    rows = start([*launcher, str(size), *SHOW, "--mpi"], env)
    assert numbers(rows) == [[rank, size, rank, size] for rank in range(size)]
    assert [row["mpi"] for row in rows] == numbers(rows)
    assert {row["family"] for row in rows} == {family}


@pytest.mark.parametrize(("launcher", "family"), LAUNCHERS)
def test_a_rank_left_in_the_shell_changes_nothing(launcher, family):
    rows = start([*launcher, "2", *SHOW], {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "5"})
    assert numbers(rows) == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert {row["family"] for row in rows} == {family}


def test_a_number_of_ranks_that_does_not_fit_is_told():
    rows = start([*HYDRA, "2", *SHOW], {"MEGADS_NUM_RANKS": "4"})
    assert all("of 2, but 4 ranks were started (MEGADS_NUM_RANKS)" in row["error"] for row in rows)


def test_where_no_variable_gives_the_size_the_launcher_or_mpi_does(mpich):
    """Hydra's PMI_PORT model sets no size, as PALS with PMIx."""
    command = ["mpiexec.hydra", "-pmi-port", "-n", "2", *SHOW]
    expected = [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert numbers(start(command, {"MEGADS_NUM_RANKS": "2"})) == expected
    assert numbers(start(command, mpich)) == expected


def test_an_mpi_that_is_not_the_starters_is_told():
    """Each process then is rank 0 of 1 to its own MPI, also the one that is rank 0."""
    told = "mpi4py says rank 0 of 1: it uses another MPI than the launcher's"
    command, env = ["mpiexec.hydra", "-pmi-port", "-n", "2"], {"MPI4PY_MPIABI": "openmpi"}
    rows = start([*command, *SHOW], env)
    assert len(rows) == 2
    assert all(told in row["error"] for row in rows)
    # Without a local size rank 0 cannot know; the others do.
    rows = start([*command, "env", "-u", "MPI_LOCALNRANKS", *SHOW], env)
    assert any("this is rank 1, " + told in row.get("error", "") for row in rows)
