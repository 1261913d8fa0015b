"""The parent of a rank: exit codes, signals, and what it tells; its life under the launchers is in test_run.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megads.launch.supervise import rank_parent
from megads.launch.supervise.processes import children, memory_kills
from megads.monitor.run_state.outcome import Heartbeat, Outcome, read_outcome, write_heartbeat, write_outcome

PATIENCE_S = 120.0
ROOT = Path(__file__).parents[3]
RANK_3 = {"MEGADS_RANK": "3", "MEGADS_WORLD_SIZE": "4", "MEGADS_LOCAL_RANK": "1", "MEGADS_LOCAL_SIZE": "2"}
NAME = f"rank 3 host {socket.gethostname()}"
BEGIN = """
import os, signal, sys, time
from pathlib import Path
from megads.launch.supervise.rank_parent import stand_guard
before = os.getpid()
stand_guard(Path(sys.argv[1]), os.environ)
"""


def guarded(folder: Path, body: str, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + BEGIN + body, str(folder)],
        env={**os.environ, **RANK_3, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_rank_is_the_child_and_its_exit_code_counts(tmp_path):
    write_outcome(tmp_path, Outcome(1, "told", 0))
    process = guarded(tmp_path, "print(before == os.getppid()); sys.exit(7)")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (7, "True\n", "")


def test_a_rank_that_ends_well_leaves_no_outcome(tmp_path):
    process = guarded(tmp_path, "pass")
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0
    assert read_outcome(tmp_path) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_rank_that_is_killed_is_told_of(tmp_path, number):
    write_heartbeat(tmp_path, Heartbeat(41, "step", 0.0, 0.0, 1, "a"))
    process = guarded(tmp_path, f"os.kill(os.getpid(), {int(number)})")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    how = f"killed by signal {int(number)} ({number.name})"
    assert err == f"[{NAME}] {how}\n"
    assert read_outcome(tmp_path) == Outcome(1, f"{NAME}: {how}", 41, "killed", 3, socket.gethostname())


def test_a_rank_that_is_ended_with_its_job_is_not_to_blame(tmp_path):
    body = "Path(sys.argv[1], 'ready').touch(); signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(300)"
    process = guarded(tmp_path, body)
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert read_outcome(tmp_path) is None


def test_the_first_to_tell_is_the_only_one(tmp_path):
    write_outcome(tmp_path, Outcome(1, "rank 2 was first", 7))
    process = guarded(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert read_outcome(tmp_path) == Outcome(1, "rank 2 was first", 7)


def test_a_stop_request_before_the_rank_listens_waits_for_it(tmp_path):
    body = """
folder = Path(sys.argv[1])
(folder / "ready").touch()
while signal.SIGUSR1 not in signal.sigpending():
    time.sleep(0.02)
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
print(heard == [signal.SIGUSR1])
"""
    process = guarded(tmp_path, body)
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=PATIENCE_S) == ("True\n", "")


def test_a_rank_dies_with_its_guard(tmp_path):
    process = guarded(tmp_path, "Path(sys.argv[1], 'ready').touch(); time.sleep(300)")
    wait_for(tmp_path / "ready")
    (rank,) = children(process.pid)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{rank}").exists() and " Z " not in Path(f"/proc/{rank}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_kills_for_want_of_memory_are_counted_in_every_place(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 2\n")
    (proc / "self/cgroup").write_text("3:cpu,memory:/job\n1:name=systemd:/x\n0::/slice/job\n")
    (cgroups / "memory/job").mkdir(parents=True)
    (cgroups / "memory/job/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (cgroups / "slice/job").mkdir(parents=True)
    (cgroups / "slice/job/memory.events").write_text("low 0\noom 9\noom_kill 4\noom_group_kill 0\n")
    assert memory_kills(proc, cgroups) == 9
    assert memory_kills(tmp_path / "nowhere", cgroups) == 0


def test_a_kill_for_want_of_memory_is_called_so(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(rank_parent, "HEARSAY_S", 0.0)
    rank_parent._report_end(-signal.SIGKILL, tmp_path, RANK_3, out_of_memory=True)
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert outcome.kind == "memory"
    assert outcome.message == f"{NAME}: killed by signal 9 (SIGKILL): this host ran out of memory"
    assert "ran out of memory" in capfd.readouterr().err


def test_a_stopped_rank_does_not_outlive_the_end_of_its_job(tmp_path):
    """A launcher that is told to end waits for its ranks, and a rank that is stopped hears no signal."""
    body = """
Path(sys.argv[1], "ready").touch()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
time.sleep(300)
"""
    process = guarded(
        tmp_path, body, "from megads.launch.supervise import rank_parent as guard; guard.KILL_AFTER_S = 0.2\n"
    )
    wait_for(tmp_path / "ready")
    os.kill(children(process.pid)[0], signal.SIGSTOP)
    assert process.stderr is not None
    assert "stopped by signal 19 (SIGSTOP)" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_guard_that_is_killed_is_told_of_by_its_rank(tmp_path, is_stopped):
    process = guarded(tmp_path, "Path(sys.argv[1], 'ready').touch(); time.sleep(300)")
    wait_for(tmp_path / "ready")
    if is_stopped:
        os.kill(children(process.pid)[0], signal.SIGSTOP)
    process.kill()
    _, err = process.communicate(timeout=PATIENCE_S)  # the rank holds the pipe, so this waits for its end
    how = "its parent process, which reports its end, was killed"
    assert f"[{NAME}] {how}\n" in err
    assert read_outcome(tmp_path) == Outcome(1, f"{NAME}: {how}", 0, "killed", 3, socket.gethostname())
