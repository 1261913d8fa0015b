"""Flux: hosts."""

from __future__ import annotations

import pytest

from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import find_allocation
from tests.launch.schedulers.helpers import CPU, SLURM


def test_flux_is_asked_for_its_hosts(tmp_path):
    (tmp_path / "flux").write_text("#!/bin/sh\n[ \"$*\" = 'getattr hostlist' ] && echo 'f[01-02],g7'\n")
    (tmp_path / "flux").chmod(0o755)
    env = {"FLUX_URI": "local:///x", "FLUX_ENCLOSING_ID": "f3A", "PATH": f"{tmp_path}:/usr/bin:/bin", **SLURM}
    found = find_allocation(RunConfig(), CPU | env)
    assert (found.scheduler, found.hosts, found.job_id) == ("flux", ("f01", "f02", "g7"), "f3A")
    with pytest.raises(LaunchError, match="FLUX_URI=local:///x: `flux getattr hostlist` returns no hosts"):
        find_allocation(RunConfig(), CPU | env | {"PATH": ""})
