"""Which program a launcher is, by what it says of itself."""

from __future__ import annotations

import pytest

from megads.errors import LaunchError
from tests.launch.launchers.helpers import TWO, fake_mpi, plan, plan_here


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


@pytest.mark.parametrize("name", ["srun", "flux", "jsrun", "pals"])
def test_a_starter_that_is_not_installed_names_others(tmp_path, path, name):
    with pytest.raises(LaunchError, match=rf"LAUNCH_WITH={name}: no .*on PATH; .*LAUNCH_WITH="):
        plan(path(), tmp_path, TWO, launch_with=name)


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
    assert plan_here(starter, 2, fake_mpi(tmp_path, **programs)).argv[0] == str(tmp_path / expected)


@pytest.mark.parametrize(("starter", "way_out"), [("openmpi", "openmpi-bin"), ("mpich", "apt-get install mpich")])
def test_a_missing_mpi_names_the_way_to_get_it(tmp_path, starter, way_out):
    env = fake_mpi(tmp_path, mpiexec="mpiexec (PALS) 1.2.3", mpirun="something else")
    with pytest.raises(
        LaunchError, match=f"LAUNCH_WITH={starter}: no .* on PATH.*{way_out}.*LAUNCH_WITH=local \\(one host\\)"
    ):
        plan_here(starter, 2, env)
