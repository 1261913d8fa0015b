"""``megads launch``: where ranks go, how it ends, which signals arrive."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig
from megads.errors import LaunchError
from megads.launch import any_program
from megads.launch.any_program import allocate_ranks
from megads.launch.launchers.plan import LaunchPlan

ROOT = Path(__file__).parents[2]
CPU = {"MEGADS_DEVICE": "cpu", "SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-4]"}


@pytest.mark.parametrize(
    ("launch", "ranks", "per_host", "expected"),
    [
        ({}, 0, 0, (4, 1, 0, 0)),
        ({}, 8, 0, (4, 2, 0, 0)),
        ({}, 7, 0, (4, 2, 7, 0)),
        ({}, 2, 0, (2, 1, 0, 2)),
        ({}, 0, 12, (4, 12, 0, 0)),
        ({}, 24, 12, (2, 12, 0, 2)),
        ({}, 13, 12, (2, 12, 13, 2)),
        ({}, 5, 12, (1, 5, 0, 3)),
        ({"ranks_per_host": 3}, 0, 12, (4, 3, 0, 0)),
        ({"ranks_per_host": 20}, 0, 12, (4, 20, 0, 0)),
        ({"num_hosts": 2}, 3, 0, (2, 2, 3, 2)),
    ],
)
def test_ranks_fill_hosts_or_are_spread_over_them(launch, ranks, per_host, expected):
    found = allocate_ranks(LaunchConfig(**launch), CPU, Facts(ranks_per_host=per_host), ranks)
    assert (len(found.hosts), found.ranks_per_host, found.num_ranks, len(found.spare)) == expected
    assert found.world_size == (ranks or expected[0] * expected[1])


def test_more_ranks_than_hosts_take_are_refused():
    with pytest.raises(LaunchError, match=r"-n 9: 4 hosts of 2 ranks each take 8; use fewer, more hosts"):
        allocate_ranks(LaunchConfig(ranks_per_host=2), CPU, Facts(), 9)


def test_a_user_may_start_more_ranks_than_accelerators(monkeypatch):
    monkeypatch.setattr(any_program, "count_accelerators", lambda env: 4)
    env = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": this_host()}
    assert allocate_ranks(LaunchConfig(ranks_per_host=6), env, Facts(), 0).world_size == 6
    assert allocate_ranks(LaunchConfig(), env, Facts(), 0).world_size == 4


def test_a_dry_run_does_the_same_when_pasted_into_a_shell(tmp_path):
    path = tmp_path / "my hosts" / "list"
    show = 'echo "$A|$B|${RANK-none}|$1"; cat "$2"'
    words = ("sh", "-c", show, "sh", "a  'b'", str(path))
    made = LaunchPlan(words, {"B": "x  y", "A": "$HOME"}, ("RANK", "WORLD_SIZE"), files={str(path): "n1\nn2\n"})
    text = made.script()
    assert "\n  'A=$HOME' \\\n  'B=x  y' \\\n" in text  # a line for each, sorted
    done = subprocess.run(["sh", "-c", text], env={"PATH": os.environ["PATH"], "RANK": "5"}, capture_output=True)
    assert done.stdout.decode() == "$HOME|x  y|none|a  'b'\nn1\nn2\n"


def start(folder: Path, *words: str, **more: object) -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "MACHINE": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-m", "megads", "launch", *words],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
    )  # fmt: skip


def wait_for(*files: Path) -> None:
    end = time.monotonic() + 60
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, files
        time.sleep(0.02)


def alive(pid: str) -> bool:
    """Return whether a process does something still; one that only waits to be reaped has no words."""
    try:
        return bool(Path("/proc", pid, "cmdline").read_bytes())
    except OSError:
        return False


SLEEPER = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def heard(number, frame):
    pathlib.Path(f"heard-{rank}-{signal.Signals(number).name}").touch()
    if number == signal.SIGTERM:
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, heard)
pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))
pathlib.Path(f"ready-{rank}").touch()
time.sleep(600)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("starter", ["openmpi", "mpich", "torchrun", "local"])
def test_signals_reach_the_ranks_and_nobody_is_left(tmp_path, starter):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = start(tmp_path, "-n", "2", "--with", starter, "--", sys.executable, "sleeper.py")
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    process.send_signal(signal.SIGUSR1)
    wait_for(tmp_path / "heard-0-SIGUSR1", tmp_path / "heard-1-SIGUSR1")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    wait_for(tmp_path / "heard-0-SIGTERM", tmp_path / "heard-1-SIGTERM")
    out, err = process.communicate(timeout=120)
    assert [rank for rank in "01" if alive((tmp_path / f"pid-{rank}").read_text())] == [], (out, err)
    assert process.returncode != 0 or starter in ("mpich", "local")  # their ranks ended by themselves


def test_one_rank_is_the_process_itself(tmp_path):
    process = start(tmp_path, "--", "sh", "-c", "echo $$ $RANK $LOCAL_RANK $WORLD_SIZE; cat; kill -9 $$")
    out, _ = process.communicate(timeout=120)
    assert out.decode() == f"{process.pid} 0 0 1\n"
    assert process.returncode == -9


def test_standard_input_passes_through(tmp_path):
    process = start(tmp_path, "-n", "1", "--", "cat", stdin=subprocess.PIPE)
    assert process.communicate(b"\xff\n", timeout=120)[0] == b"\xff\n"


@pytest.mark.mpi
@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Open MPI")
def test_a_rank_that_is_killed_gives_128_and_the_signal(tmp_path):
    script = "[ $RANK = 0 ] || kill -9 $$; sleep 600"
    process = start(tmp_path, "-n", "2", "--with", "openmpi", "--", "sh", "-c", script)
    process.communicate(timeout=120)
    assert process.returncode == 137


def test_ten_thousand_hosts_cost_the_launcher_next_to_nothing(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "MACHINE": "cpu", "SLURM_JOB_ID": "1"}
    env |= {"SLURM_JOB_NODELIST": f"{this_host()},nid[00001-09999]", "NGPU_PER_HOST": "4"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "megads", "launch", "--dry-run", "--", "true"],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    *lines, command = done.stdout.rstrip("\n").split("\n")
    assert "--nodes=10000 --ntasks=40000" in command
    assert len(command) < 500  # no list of hosts on it
    assert len(lines) > 10000
    # Work, not waiting: other programs on this host must not fail the test.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
