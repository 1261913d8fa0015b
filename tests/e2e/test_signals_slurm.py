"""The same as test_signals.py under a real SLURM of two nodes: one rank on each, started by srun in a batch job."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest

from tests.cluster.slurm import Slurm
from tests.e2e.conftest import SLOW, Command
from tests.e2e.test_signals import HOST, LONG, SOON_S, checkpoints, gone, outcome_of, ranks_in, stopped_well

TWO_HOSTS = {**LONG, "TP": "2", "NGPU_PER_HOST": "1", "SAVE_INTERVAL": "2"}


class Job:
    """A batch job that trains."""

    def __init__(self, slurm: Slurm, megads: Command, *options: str, name: str = "r", **settings: str) -> None:
        self.slurm, self.folder, self.out = slurm, megads.folder / name, megads.folder / f"out-{name}.txt"
        script = megads.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {sys.executable} -m megads train\n")
        env = {**megads.env(**TWO_HOSTS, RUN_DIR=name, **settings), "PATH": slurm.env["PATH"]}
        words = ("-N2", "--ntasks-per-node=1", f"--output={self.out}", *options)
        self.begun = time.time()
        self.id = slurm.submit(script, *words, env=env, cwd=megads.folder)

    def wait_for_step(self, step: int) -> None:
        """Wait until the run has done ``step``."""
        until, path = time.monotonic() + 120, self.folder / "metrics.jsonl"
        while not (path.is_file() and f'"iteration": {step},' in path.read_text()):
            alive = time.monotonic() < until and self.slurm.ended(self.id) is None
            assert alive, self.out.read_text() if self.out.exists() else self.slurm.logs()
            time.sleep(0.1)

    def end(self, timeout_s: float = SOON_S) -> tuple[int, str]:
        """Return the exit code and the output of the job."""
        return self.slurm.wait(self.id, timeout_s), self.out.read_text()

    def kill(self) -> None:
        """End it if it runs."""
        if self.slurm.ended(self.id) is None:
            self.slurm.run("scancel", "--signal=KILL", "--full", self.id)


@pytest.fixture
def submit(slurm, megads):
    jobs = []

    def start(*options: str, **settings: str) -> Job:
        jobs.append(Job(slurm, megads, *options, **settings))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture(scope="module", autouse=True)
def waiting(slurm, cache, tmp_path_factory):
    """Two jobs that SLURM tells of their end, or ends: a minute in which the other tests go on."""
    megads = Command(tmp_path_factory.mktemp("waiting") / "jobs", cache)
    megads.folder.mkdir()
    path = megads.plant(SLOW)
    # SLURM looks at it every 30 s, and sends it up to 30 s early.
    signalled = Job(slurm, megads, "--time=2", "--signal=USR1@75", PYTHONPATH=path)
    limited = Job(slurm, megads, "--time=1", name="limited", PYTHONPATH=path)
    yield signalled, limited
    signalled.kill()
    limited.kill()


def test_a_signal_of_slurm_saves_and_stops(submit, slurm, megads):
    job = submit()
    job.wait_for_step(3)
    # To the processes of the step, as the signal of `sbatch --signal` is.
    assert slurm.run("scancel", "--signal=USR1", job.id).returncode == 0
    code, out = job.end()
    assert stopped_well(megads.folder / "r", code, out) >= 3
    assert "asked to stop; saved at iteration" in out


def test_a_killed_rank_on_another_node_is_named_and_the_job_ends(submit, megads):
    job = submit()
    job.wait_for_step(3)
    ranks = ranks_in(megads.folder)
    begin = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    code, out = job.end()
    assert time.monotonic() - begin < SOON_S
    assert code == 1, out
    assert f"megads: the run failed: rank 1 host {HOST}: killed by signal 9 (SIGKILL)\n" in out
    assert outcome_of(megads.folder / "r")["kind"] == "killed"
    assert "iter_0000002" in checkpoints(megads.folder / "r")
    assert gone(ranks)


@pytest.mark.slow
def test_a_stuck_rank_on_another_node_is_named_and_the_job_ends(submit, megads):
    job = submit(MEGADS_TIMEOUT_S="8")
    job.wait_for_step(5)
    ranks = ranks_in(megads.folder)
    begin = time.monotonic()
    os.kill(ranks[1], signal.SIGSTOP)
    code, out = job.end()
    assert time.monotonic() - begin < SOON_S
    assert code == 1, out
    assert re.search(rf"megads: no progress for \d+ s in \w+ after iteration \d+: rank 1 host {HOST} did not", out)
    assert outcome_of(megads.folder / "r")["kind"] == "hang"
    assert gone(ranks)


@pytest.mark.slow
def test_the_signal_and_the_time_limit_of_sbatch(waiting):
    signalled, limited = waiting
    code, out = limited.end(90)
    assert stopped_well(limited.folder, code, out) >= 1
    assert (limited.folder / "outcome.json").stat().st_mtime - limited.begun < 60
    assert re.search(r"ends     at \d\d:\d\d:\d\d.*, in (1m00|\d\d)s", out)
    assert re.search(r"stopped  \d+ of 4000 iterations; the allocation ends at", out)
    code, out = signalled.end(60)
    assert stopped_well(signalled.folder, code, out) >= 1
    assert "asked to stop; saved at iteration" in out
