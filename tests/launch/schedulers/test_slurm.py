"""Lines about what a job's scheduler does that would otherwise be silent."""

from __future__ import annotations

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.launch.schedulers.allocation import Allocation, job_notes

TWO = Allocation("slurm", ("n1", "n2"), 4, "7")
SPARE = Allocation("slurm", ("n1",), 4, "7", spare=("n2",))


def notes(allocation, folder, restarts=0, **env):
    run = RunConfig(launch=LaunchConfig(max_restarts=restarts))
    return list(job_notes(run, allocation, {"SLURM_JOB_ID": "7", **env}, folder))


def test_a_heterogeneous_job_is_reported(tmp_path):
    (said,) = notes(TWO, tmp_path, SLURM_HET_SIZE="3")
    assert said == "SLURM job 7 is heterogeneous: of its 3 groups only group 0 is used, 2 hosts"
    assert notes(TWO, tmp_path, SLURM_HET_SIZE="1") == []


@pytest.mark.parametrize(("allocation", "restarts", "what"), [(TWO, 2, "MAX_RESTARTS"), (SPARE, 0, "a spare host")])
def test_what_slurm_does_with_a_failed_host_is_reported(tmp_path, allocation, restarts, what):
    (said,) = notes(allocation, tmp_path, restarts)
    assert said.startswith(f"{what} helps after a failed host only if the job was submitted with --no-kill")
    # The job that `megads train --submit` wrote has the option.
    (tmp_path / "job.sh").write_text("#!/bin/bash -l\n#SBATCH --nodes=2\n#SBATCH --no-kill\n")
    assert notes(allocation, tmp_path, restarts) == []


def test_nothing_is_reported_where_nothing_is_expected(tmp_path):
    assert notes(TWO, tmp_path) == []
    assert notes(Allocation("slurm", ("n1",), 4, "7"), tmp_path, 2) == []
    assert notes(Allocation("pbs", ("n1", "n2"), 4, "7"), tmp_path, 2, SLURM_HET_SIZE="2") == []
