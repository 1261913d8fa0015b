"""Staging on the hosts of a job: the plan of the agents, what is refused, what ranks get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import UNKNOWN, Allocation
from megads.launch.staging import agent, stage
from megads.launch.staging.archive import CHECKOUT, ENV
from megads.launch.staging.registry import Host, Report
from tests.launch.staging.test_archive import environment

HERE = Allocation("none", (os.uname().nodename,), 4, num_ranks=3)


def test_an_agent_runs_on_each_host_and_its_secret_is_not_shown(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": str(tmp_path), "SLURM_JOB_ID": "7"}
    run = RunConfig(launch=LaunchConfig(cpu_bind="list:0:1:2:3", launch_with="torchrun"))
    allocation = Allocation("slurm", ("127.0.0.2", "127.0.0.3", "127.0.0.4"), 4, "7", ("n5",), num_ranks=11)
    plan = stage.plan_agents(allocation, UNKNOWN, run, env, "5 n1 10.0.0.1", "the secret")
    assert plan.argv[0] == str(tmp_path / "srun")
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= {*plan.argv}
    assert plan.argv[-1] == agent.__file__
    assert "the secret" not in plan.script()
    found = plan.environment(env)
    assert (found[agent.AT], found[agent.SECRET], found["MEGADS_NUM_RANKS"]) == ("5 n1 10.0.0.1", "the secret", "3")


def test_ranks_get_the_staged_python_and_megads(tmp_path, monkeypatch):
    place, root = tmp_path / "node", tmp_path / "from/checkout"
    sources = environment(tmp_path / "from")
    monkeypatch.setattr(stage, "sources_of", lambda python, root, with_base: sources)
    env, lines = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{root}{os.pathsep}/more"}, []
    run = RunConfig(launch=LaunchConfig(stage_dir=str(place)))
    for reused in (0, 1):
        found = stage.stage(
            HERE, UNKNOWN, run, env, python="python", root=root, archives=tmp_path / "archives", say=lines.append
        )
        (staged,) = [path for path in place.iterdir() if path.is_dir()]
        assert found.python == str(staged / ENV / "bin/python")
        assert found.variables() == {"PYTHONPATH": f"{staged / CHECKOUT}{os.pathsep}/more"}
        assert found.line.endswith(f", {reused} had it")
    assert ["made" in line for line in lines] == [True, False]
    assert stage.remove_staged(HERE, UNKNOWN, run, env).hosts[0].removed == 2
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_the_archive_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "make_archive", lambda *words: pytest.fail("made an archive"))
    (tmp_path / "file").touch()
    run = RunConfig(launch=LaunchConfig(stage_dir=str(tmp_path / "file/stage")))
    with pytest.raises(LaunchError, match=r"failed on 1 of 1 host .*file/stage: not a directory; .*--to \(STAGE_DIR"):
        stage.stage(HERE, UNKNOWN, run, {}, python="python", root=tmp_path, archives=tmp_path / "archives")


def test_hosts_that_failed_are_named_in_one_line():
    stage.refuse_failed(Report([Host("a"), Host("b")]), 2)
    failed = [Host(f"n{i}", problem="no space left on device") for i in range(10)]
    with pytest.raises(LaunchError) as error:
        stage.refuse_failed(Report([Host("a"), *failed]), 11)
    assert str(error.value) == (
        "staging failed on 10 of 11 hosts (n0, n1, n2, n3, n4, n5, n6, n7 ...): no space left on device"
    )
    with pytest.raises(LaunchError, match=r"staging: 2 of 3 hosts did not report; .* STAGE_ENV=0"):
        stage.refuse_failed(Report([Host("a")], missing=2), 3)


def test_the_folder_is_an_absolute_path():
    assert stage.stage_folder() == f"/tmp/megads-{os.getuid()}/stage"
    assert stage.stage_folder("/local/x") == "/local/x"
    with pytest.raises(LaunchError, match="STAGE_DIR=x: is not an absolute path"):
        stage.stage_folder("x")


def test_this_host_has_a_name_and_addresses():
    assert stage.addresses()[0] == os.uname().nodename
    assert stage.addresses()[-1] == "127.0.0.1"
    assert Path(agent.__file__).is_file()
