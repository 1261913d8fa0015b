"""One job holds a run folder and its checkpoints: with locks, without, over hosts, and when either side crashes."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.config.settings.checkpoint import CheckpointConfig
from megads.errors import LaunchError
from megads.launch import claims
from megads.launch.claims import InUse, claim, claim_all, claim_checkpoints, is_free, wait_for
from megads.monitor.run_state.outcome import Heartbeat, write_heartbeat
from megads.storage import lease
from megads.storage.lease import EXPIRES_S, holder_of
from tests.shim import Rule, shim_env, shimmed


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def hold(code, **variables):
    """Start a program that says "held" when it holds the folder."""
    env = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **pipes)


def test_two_runs_can_not_share_a_folder(tmp_path):
    code = (
        "import sys, pathlib; from megads.launch.claims import claim\n"
        "with claim(pathlib.Path('runs/7B')): print('held', flush=True); sys.stdin.read()"
    )
    holder = hold(code)
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(
            LaunchError, match=r"another run is using it \(\w+ on .*, process \d+, for \d+s\); `megads stop runs/7B`"
        ),
        claim(Path("runs/7B")),
    ):
        pass
    holder.kill()
    holder.communicate()
    with claim(tmp_path / "runs/7B"):
        pass


def test_the_lock_survives_exec(tmp_path):
    code = (
        "import os, sys, pathlib; from megads.launch.claims import claim\n"
        "with claim(pathlib.Path('runs/7B')): os.execv('/bin/sh', ['sh', '-c', 'echo held; read x'])"
    )
    holder = hold(code)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LaunchError, match="another run"), claim(tmp_path / "runs/7B"):
        pass
    holder.kill()
    holder.communicate()


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(LaunchError, match=r"run folder runs/7B: .*set RUN_DIR"), claim(Path("runs/7B")):
        pass


@pytest.mark.parametrize("begun", ["", "metrics.jsonl", "checkpoints/iter_0000100/manifest.json"])
def test_a_new_folder_goes_with_a_run_that_is_refused_and_stays_once_ranks_have_begun(begun):
    """A restart fails hours later, as where a host that replaces another one has no room for what is staged."""

    def run() -> None:
        with claim(Path("runs/new")):
            for name in filter(None, ("config.yaml", begun)):
                path = Path("runs/new", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            Path("runs/new/checkpoints").mkdir(exist_ok=True)
            raise LaunchError("staging failed on n5: no room")

    with pytest.raises(LaunchError, match="no room"):
        run()
    assert Path("runs/new", begun).exists() == Path("runs").exists() == bool(begun)


def test_a_run_of_another_host_whose_lock_is_not_seen_holds_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "DYING_S", 0.0)
    beats = itertools.count()

    def beat(seconds):
        assert seconds == claims.BEATS_S
        write_heartbeat(tmp_path, Heartbeat(0, "step", 0.0, next(beats), 1, "b"))

    monkeypatch.setattr(claims, "time", SimpleNamespace(sleep=beat, monotonic=time.monotonic))
    beat(claims.BEATS_S)
    with pytest.raises(LaunchError, match="another run is using it"), claim(tmp_path):
        pass
    claims.time.sleep = lambda seconds: None
    with claim(tmp_path):
        pass


def test_two_runs_can_not_share_their_checkpoints(tmp_path):
    refused = pytest.raises(LaunchError, match="another run is using")
    shared = RunConfig(checkpoint=CheckpointConfig(dir=str(tmp_path / "c")))
    with claim_checkpoints(shared, tmp_path / "a"), refused, claim_checkpoints(shared, tmp_path / "b"):
        pass
    with claim_checkpoints(RunConfig(), tmp_path / "d") as own:
        assert own == tmp_path / "d/checkpoints"
        assert list(own.iterdir()) == []


OTHER_HOST = (
    "import os, sys, pathlib, time; from megads.launch.claims import claim\n"
    "with claim(pathlib.Path('r'), '17.pbs'): print('held', flush=True); sys.stdin.read()"
)
NO_LOCKS = [Rule("flock", "*/lock", "ENOLCK")]
PER_HOST_LOCKS = [Rule("flock", "*/lock", "granted")]
REMEMBERED = [Rule("flock", "*/lock", "ENOSYS"), Rule("cache", "*", amount=60), Rule("skew", "*", amount=-7200)]


@pytest.mark.parametrize("rules", [NO_LOCKS, PER_HOST_LOCKS, REMEMBERED], ids=["no locks", "per host", "nfs"])
def test_a_job_of_another_host_holds_a_folder_without_locks_until_it_dies(tmp_path, monkeypatch, rules):
    """The other one is killed, so it releases nothing; its lease runs out, here by a clock that jumps."""
    holder = hold(OTHER_HOST, **shim_env(rules, host="nid0042"))
    assert holder.stdout.readline() == "held\n"
    with shimmed(rules):
        with pytest.raises(LaunchError) as refused, claim(Path("r")):
            pass
        who = r"\(job 17.pbs of \w+ on nid0042, process \d+, for .*\)"
        assert re.search(rf"run folder r: another run is using it {who}; `megads stop r`", str(refused.value))
        holder.kill()
        holder.communicate()
        monkeypatch.setattr(claims, "stays_the_same", lambda folder, holder, watch_s: watch_s == EXPIRES_S)
        with claim(Path("r")):
            assert holder_of(Path("r")).job == ""


@pytest.mark.parametrize("rules", [NO_LOCKS, PER_HOST_LOCKS], ids=["no locks", "per host"])
def test_a_process_of_this_host_that_died_leaves_its_folder_at_once(tmp_path, rules, monkeypatch):
    monkeypatch.setattr(claims, "stays_the_same", None)  # nobody has to be watched
    holder = hold(OTHER_HOST, **shim_env(rules))
    assert holder.stdout.readline() == "held\n"
    with shimmed(rules):
        with pytest.raises(LaunchError, match=r"another run is using it \(job 17.pbs of"), claim(Path("r")):
            pass
        holder.kill()
        holder.communicate()
        with claim(Path("r"), "18.pbs"):
            assert holder_of(Path("r")).job == "18.pbs"
        assert holder_of(Path("r")).is_over


def test_who_loses_its_folder_is_asked_to_stop(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(lease, "RENEWS_S", 0.01)
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    try:
        with claim(Path("r"), "1"), shimmed([Rule("flock", "*/lock", "granted")]):
            lease.take(Path("r"), lease.this_process("2"), holder_of(Path("r")))
            until = time.monotonic() + 300
            while not asked.is_set() and time.monotonic() < until:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked.is_set()
    assert "job 2 of" in capfd.readouterr().err
    assert not holder_of(Path("r")).is_over


def test_a_job_waits_until_the_folder_is_free(tmp_path, monkeypatch, capfd):
    waits = RunConfig().model_copy(update={"launch": LaunchConfig(in_use="wait")})
    refused = InUse("run folder r: another run is using it; stop it")
    with pytest.raises(InUse, match="stop it"):
        wait_for(Path("r"), RunConfig(), refused, 0.0)
    with ExitStack() as first:
        first.enter_context(claim(Path("r"), "1"))
        assert not is_free(Path("r"))
        with pytest.raises(
            InUse, match=r"another run is using it, and this allocation ends at .*; submit this job again"
        ):
            wait_for(Path("r"), waits, refused, time.time() + 60)
        monkeypatch.setattr(
            claims, "time", SimpleNamespace(sleep=lambda seconds: first.close(), monotonic=time.monotonic)
        )
        wait_for(Path("r"), waits, refused, time.time() + 3600)
    assert (
        "run folder r: another run is using it; waiting until it has ended (IF_IN_USE=wait)" in capfd.readouterr().err
    )
    assert is_free(Path("r"))


def test_checkpoints_outside_of_the_run_folder_have_a_lease_of_the_same_token(tmp_path):
    shared = RunConfig(checkpoint=CheckpointConfig(dir=str(tmp_path / "c")))
    refused = pytest.raises(LaunchError, match=r"checkpoints in .*c: another run is using the folder \(job 1 of")
    with claim_all(shared, tmp_path / "a", "1") as (token, checkpoints):
        assert {holder_of(tmp_path / "a").token, holder_of(checkpoints).token} == {token}
        with refused, claim_all(shared, tmp_path / "b"):
            pass


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_takes_no_folder_and_leaves_none(tmp_path, name):
    shared = RunConfig(checkpoint=CheckpointConfig(dir=str(tmp_path / "c")))
    with shimmed([Rule("write", "*/lease/*", name)]):
        with pytest.raises(LaunchError, match=r"run folder r: .*; free some space or set RUN_DIR"), claim(Path("r")):
            pass
        with (
            pytest.raises(LaunchError, match=r"c: .*; free some space or set CKPT_DIR"),
            claim_checkpoints(shared, tmp_path / "r"),
        ):
            pass
    assert not Path("r").exists()
