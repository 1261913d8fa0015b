"""The same as test_signals.py under a real SLURM of two nodes: one rank on each, started by srun in a batch job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.conftest import Command
from tests.e2e.test_resume import wait_for_step
from tests.e2e.test_signals import HOST, LONG, SOON_S, checkpoints, gone, outcome_of, ranks_in, stopped_well

pytestmark = pytest.mark.alone

TWO_HOSTS = {**LONG, "TP": "2", "NGPU_PER_HOST": "1", "SAVE_INTERVAL": "2"}


class Job:
    """A batch job that trains."""

    def __init__(self, slurm, megads: Command, *options: str, name: str = "r", **settings: str) -> None:
        self.slurm, self.folder, self.out = slurm, megads.folder / name, megads.folder / f"out-{name}.txt"
        script = megads.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {sys.executable} -m megads train\n")
        env = {**slurm.env, **megads.env(**TWO_HOSTS, RUN_DIR=name, **settings)}
        env["PATH"] = slurm.env["PATH"]
        words = ["sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={self.out}", *options, str(script)]
        self.process = subprocess.Popen(
            words, cwd=megads.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().split()[-1]

    def wait_for_step(self, step: int) -> None:
        """Wait until the run has done ``step``."""
        try:
            wait_for_step(self.process, self.folder, step)
        except AssertionError:
            raise AssertionError(self.out.read_text() if self.out.exists() else self.slurm.logs()) from None

    def end(self, timeout_s: float = SOON_S) -> tuple[int, str]:
        """Return the exit code and the output of the job."""
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode, self.out.read_text()


@pytest.fixture
def submit(slurm, megads):
    jobs = []

    def start(*options: str, **settings: str) -> Job:
        jobs.append(Job(slurm, megads, *options, **settings))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            slurm.run("scancel", "--signal=KILL", "--full", job.id)
            job.process.kill()
        job.process.communicate()


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
def test_the_signal_and_the_time_limit_of_sbatch(submit, megads):
    begin = time.monotonic()
    # SLURM looks at it every 30 s, and sends it up to 30 s early.
    by_signal = submit("--time=2", "--signal=USR1@75")
    by_limit = submit("--time=1", name="limited")
    code, out = by_limit.end(90)
    assert time.monotonic() - begin < 62
    assert stopped_well(by_limit.folder, code, out) >= 1
    assert re.search(r"ends     at \d\d:\d\d:\d\d.*, in (1m00|\d\d)s", out)
    assert re.search(r"stopped  \d+ of 4000 iterations; the allocation ends at", out)
    code, out = by_signal.end(60)
    assert stopped_well(by_signal.folder, code, out) >= 1
    assert "asked to stop; saved at iteration" in out
