"""What says where a run begins is for one job, which its scheduler does not start again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megads.errors import LaunchError
from megads.launch.submit.job_script import JobOptions
from tests.checkpoint.faked import fake as checkpoint
from tests.launch.submit.helpers import ask, directives, prepared


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """Work in a folder without runs and without a demo corpus."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("machine", "once"), [("polaris", "-r n"), ("frontier", "--no-requeue")])
def test_what_says_where_a_run_begins_is_said_to_one_job_that_runs_once(tmp_path, machine, once):
    own, end = "runs/7B/checkpoints", {"WALLTIME": "1h", "NLAYERS": 2}
    checkpoint(Path(own), 50, prepared(ask(machine, **end)).resolved.run)
    loads = {"LOAD": f"{own}/iter_0000050"}
    for env, named in (({"CKPT_STEP": 50, "NO_LOAD_OPTIM": 1}, "CKPT_STEP, LOAD_OPTIM"), (loads, "LOAD")):
        with pytest.raises(LaunchError) as refused:
            prepared(ask(machine, **end, **env), JobOptions(nodes=2, account="X", chain=3))
        assert str(refused.value).startswith(
            f"--chain 3: every job would start over because of {named}, and lose what the one"
        )
        assert once in directives(prepared(ask(machine, **end, **env)).text)
    plain = prepared(ask(machine, **end, LOAD=own), JobOptions(nodes=2, account="X", chain=3))
    assert plain.chain == 3
    assert once not in directives(plain.text)


def test_a_chain_of_a_fresh_run_resumes_the_folder_that_was_chosen(tmp_path):
    (tmp_path / "runs/7B/log").mkdir(parents=True)
    wanted = ask("frontier", WALLTIME="1h")
    words = ("train", "--fresh", "--preset", "7B")
    fresh = replace(wanted, words=words, env={**wanted.env, "MEGADS_COMMAND": "bash t.sh --fresh"}).starting_fresh()
    assert fresh.command([]) == "bash t.sh"
    assert replace(fresh, env={}).command([], Path("runs/7B-2")) == "RUN_DIR=runs/7B-2 megads train --preset 7B"
    job = prepared(fresh, JobOptions(nodes=2, account="X", chain=3))
    assert "dir=runs/7B-2" in job.text
    assert "--fresh" not in job.text
