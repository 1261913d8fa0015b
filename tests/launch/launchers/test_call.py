"""What every launcher refuses."""

from __future__ import annotations

import pytest

from megads.cluster.hosts import this_host
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import Allocation
from tests.launch.launchers.helpers import JOB, TWO, many, plan


def test_a_command_that_linux_would_not_start_is_refused_by_name(tmp_path, path):
    spare = tuple(f"host{number:05}" for number in range(20000, 40000))
    allocation = Allocation("flux", many(20000).hosts, 1, "f7", spare)
    with pytest.raises(LaunchError, match=r"^LAUNCH_WITH=flux needs an argument of \d+ bytes \(--requires="):
        plan(path(flux="flux") | {"FLUX_URI": "x"}, tmp_path, allocation, launch_with="flux")


def test_words_for_binding_that_a_starter_does_not_know_are_refused(tmp_path, path):
    here = Allocation("none", (this_host(),), 2)
    with pytest.raises(LaunchError, match=r"CPU_BIND=depth: local has no such option; use CPU_BIND=list:"):
        plan(path(), tmp_path, here, cpu_bind="depth")
    with pytest.raises(LaunchError, match=r"has 1 core lists for 2 ranks"):
        plan(path(), tmp_path, here, cpu_bind="list:0-3")
    for wrong in ("list:a:b", "list:3-0:4", "list:0-99999999999:1", "list:", " "):
        with pytest.raises(LaunchError, match=r"expected core lists such as"):
            plan(path(), tmp_path, here, cpu_bind=wrong)


@pytest.mark.parametrize(("name", "variable"), list(zip(("srun", "flux", "jsrun"), JOB, strict=True)))
def test_a_schedulers_starter_is_for_its_jobs(tmp_path, path, name, variable):
    env = path(**{name: name})
    del env[variable]
    with pytest.raises(LaunchError, match=rf"LAUNCH_WITH={name} starts ranks inside an? .*, and {variable} is not set"):
        plan(env, tmp_path, TWO, launch_with=name)
