"""Submitting to a real SLURM of two nodes (tests.cluster.slurm)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
SMALL = {"NLAYERS": "2", "TRAIN_ITERS": "4", "EVAL_ITERS": "0", "EVAL_AT_START": "0", "MEGADS_DEVICE": "cpu"}


def environment(slurm, **more: str) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR", "USER")}
    return base | slurm.env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def submit(folder: Path, env: dict[str, str], *words: str) -> list[str]:
    command = [sys.executable, "-m", "megads", "train", "--submit", "--preset", "7B", "--walltime", "10:00", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_chain_goes_on_and_its_rest_ends_quickly(slurm, tmp_path):
    """Job 1 stops after 2 of 4 steps on two nodes, job 2 ends the run, job 3 has nothing to do."""
    given = {**SMALL, "TP": "2", "EXIT_INTERVAL": "2"}
    jobs = submit(tmp_path, environment(slurm, **given), "--nodes", "2", "--chain", "3", "--option", "--oversubscribe")
    assert [slurm.wait(job, 120) for job in jobs] == [75, 0, 0]
    folder = tmp_path / "runs/7B"
    assert (folder / "jobs.txt").read_text().split() == jobs
    assert json.loads((folder / "outcome.json").read_text())["iteration"] == 4
    first, second, third = (next((folder / "log").glob(f"*-{job}.out")).read_text() for job in jobs)
    assert "2 ranks on 2 hosts: TP=2" in first
    assert "iter_0000002, iteration 2" in second
    assert "runs/7B is complete (4 iterations)" in third


def test_a_signal_to_the_batch_shell_stops_the_run(slurm, tmp_path):
    """What `--signal=B:USR1@` sends reaches the launcher, which took the place of the job's shell."""
    env = environment(slurm, **SMALL)
    (job,) = submit(tmp_path, env, "--set", "train.train_iters=100000", "--set", "checkpoint.save_interval=100000")
    metrics = tmp_path / "runs/7B/metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert time.monotonic() < end, slurm.logs()
        time.sleep(0.2)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], env=env, check=True, timeout=30)
    assert slurm.wait(job, 120) == 75
    outcome = json.loads((tmp_path / "runs/7B/outcome.json").read_text())
    assert outcome["exit_code"] == 75
    assert (tmp_path / f"runs/7B/checkpoints/iter_{outcome['iteration']:07}").is_dir()
