"""What says where a run begins is for one job, which its scheduler does not start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.errors import LaunchError
from megads.launch.submit_train import Wish
from tests.checkpoint.faked import fake as checkpoint
from tests.launch.test_submit import ask, directives, prepared


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
            prepared(ask(machine, **end, **env), Wish(nodes=2, account="X", chain=3))
        assert str(refused.value).startswith(f"--chain 3: every job would begin again by {named}, and what the one")
        assert once in directives(prepared(ask(machine, **end, **env)).text)
    plain = prepared(ask(machine, **end, LOAD=own), Wish(nodes=2, account="X", chain=3))
    assert plain.chain == 3
    assert once not in directives(plain.text)
