"""Real ranks under the real launchers: what they see, how signals reach them, how runs end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megads.launch.supervise.processes import children
from megads.monitor.run_state.outcome import read_outcome

PATIENCE_S = 200.0  # more than a busy host needs, less than ranks_script.py waits
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAM = {"mpich": "mpiexec.hydra", "openmpi": "mpirun.openmpi"}
LAUNCHERS = ["local", *(pytest.param(name, marks=pytest.mark.mpi) for name in PROGRAM)]
WITH_TORCHRUN = [*LAUNCHERS, "torchrun"]

# What an earlier job may have left in the user's shell.
STALE = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
    "GROUP_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "old",
    "OMPI_COMM_WORLD_RANK": "7",
    "OMPI_COMM_WORLD_LOCAL_RANK": "7",
    "PMI_RANK": "6",
    "MPI_LOCALRANKID": "6",
    "MEGADS_RANK": "4",
}


class Launched:
    """A launch in progress."""

    def __init__(self, starter: str, ranks: int, run_dir: Path, mode: str, env: dict[str, str]) -> None:
        self.run_dir, self.ranks = run_dir, ranks
        self.errors = run_dir / "stderr"
        argv = [sys.executable, str(HERE / "launch_script.py"), starter, str(ranks), str(run_dir), mode]
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=errors)

    def wait_for(self, what: str) -> None:
        """Wait until every rank has left the file ``<what>-<rank>``."""
        self._wait(lambda: all((self.run_dir / f"{what}-{rank}").exists() for rank in range(self.ranks)), what)

    def wait_for_text(self, text: str) -> None:
        """Wait until the launch has printed ``text`` on stderr."""
        self._wait(lambda: text in self.errors.read_text(), text)

    def _wait(self, has_come: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not has_come():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, f"no {what}: {self.errors.read_text()}"
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Return exit code and stderr; no process of the run may be left."""
        code = self.process.wait(timeout=PATIENCE_S)
        assert not processes_of(self.run_dir)
        return code, self.errors.read_text()


def processes_of(run_dir: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(run_dir) in words:
            found.append(" ".join(words))
    return found


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started = []

    def start(starter: str, ranks: int, mode: str, **env: str) -> Launched:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "OMP_"))}
        started.append(Launched(starter, ranks, tmp_path, mode, clean | {"PYTHONPATH": str(ROOT)} | env))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("starter", WITH_TORCHRUN)
def test_every_rank_knows_its_place(launch, tmp_path, starter):
    code, errors = launch(starter, 3, "tell", **STALE, KEPT="yes").end()
    assert code == 0, errors
    facts = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(3)]
    assert [(f["rank"], f["world_size"], f["local_rank"], f["local_size"]) for f in facts] == [
        (0, 3, 0, 3),
        (1, 3, 1, 3),
        (2, 3, 2, 3),
    ]
    assert len({f["env"]["MASTER_PORT"] for f in facts} - {"1"}) == 1
    for fact in facts:
        assert fact["env"]["MASTER_ADDR"] == "127.0.0.1"
        assert fact["env"]["DS_ACCELERATOR"] == "cpu"
        assert fact["env"]["OMP_NUM_THREADS"]
        assert fact["env"]["KEPT"] == "yes"
        assert fact["env"].get("TORCHELASTIC_RUN_ID") != "old"
        assert fact["env"].get("MEGADS_RANK") != STALE["MEGADS_RANK"]
        assert "MEGADS_IN_PLACE" not in fact["env"]


def test_one_rank_takes_the_place_of_the_launcher(launch, tmp_path):
    started = launch("direct", 1, "tell", **STALE)
    code, errors = started.end()
    assert code == 0, errors
    fact = json.loads((tmp_path / "rank-0.json").read_text())
    assert (fact["rank"], fact["world_size"], fact["family"]) == (0, 1, "MEGADS_RANK")
    assert fact["env"]["MEGADS_IN_PLACE"] == "1"
    assert "TORCHELASTIC_RUN_ID" not in fact["env"]


def test_one_rank_hears_a_stop_that_comes_before_its_handler(launch, tmp_path):
    started = launch("direct", 1, "usr1")
    while b"ranks_script.py" not in Path(f"/proc/{started.process.pid}/cmdline").read_bytes():
        assert started.process.poll() is None
    started.process.send_signal(signal.SIGUSR1)
    started.end()
    assert (tmp_path / "usr1-0").exists()


@pytest.mark.parametrize("starter", WITH_TORCHRUN)
def test_stop_signal_reaches_every_rank(launch, tmp_path, starter):
    started = launch(starter, 2, "usr1")
    started.wait_for("ready")
    started.process.send_signal(signal.SIGUSR1)
    code, errors = started.end()
    assert code == 75, errors
    assert (tmp_path / "usr1-0").exists()
    assert (tmp_path / "usr1-1").exists()
    assert errors.count("megads: stopping after this step and saving") == 1


@pytest.mark.parametrize(
    ("starter", "number"),
    [("local", signal.SIGHUP), *(pytest.param(name, signal.SIGTERM, marks=pytest.mark.mpi) for name in PROGRAM)],
)
def test_other_signals_ask_to_stop_as_well(launch, starter, number):
    started = launch(starter, 2, "file")
    started.wait_for("ready")
    started.process.send_signal(number)
    code, errors = started.end()
    assert code == 75, errors


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_ranks_without_a_handler_survive_the_signal_and_find_the_file(launch, starter):
    started = launch(starter, 2, "file")
    started.wait_for("ready")
    started.process.send_signal(signal.SIGINT)
    code, errors = started.end()
    assert code == 75, errors


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_a_rank_that_dies_takes_the_run_down(launch, starter):
    code, errors = launch(starter, 3, "raise").end()
    assert code == 1
    assert "[rank 1] Traceback" in errors
    assert "ArithmeticError: rank 1 is broken" in errors


DEATHS = {
    "killed": ("killed by signal 9 (SIGKILL)", "killed"),
    "wordless": ("ended with exit code 7 and no message", "error"),
}


@pytest.mark.parametrize(
    ("starter", "mode"),
    [
        ("local", "killed"),
        ("local", "wordless"),
        *(pytest.param(n, "killed", marks=pytest.mark.mpi) for n in PROGRAM),
    ],
)
def test_a_rank_that_can_not_speak_is_named_with_its_host_and_takes_the_run_down(launch, tmp_path, starter, mode):
    code, errors = launch(starter, 3, mode).end()
    assert code == 1, errors
    how, kind = DEATHS[mode]
    name = f"rank 1 host {socket.gethostname()}"
    assert f"[{name}] {how}\n" in errors
    assert f"megads: the run failed: {name}: {how}\n" in errors
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert (outcome.rank, outcome.host, outcome.kind) == (1, socket.gethostname(), kind)


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_a_rank_that_is_stopped_is_told_of_and_goes_on(launch, tmp_path, starter):
    started = launch(starter, 2, "stopped")
    started.wait_for("ready")
    started.wait_for_text(f"[rank 1 host {socket.gethostname()}] stopped by signal 19 (SIGSTOP)")
    os.kill(paused(tmp_path), signal.SIGCONT)
    started.process.send_signal(signal.SIGUSR1)
    code, errors = started.end()
    assert code == 75, errors


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_a_stuck_rank_is_named_by_the_others_and_takes_the_run_down(launch, tmp_path, starter):
    started = launch(starter, 3, "hang")
    started.wait_for("ready")
    code, errors = started.end()
    assert code == 1, errors
    headline = rf"no progress for \d+ s in step after iteration 0: rank 1 host {socket.gethostname()} did not answer"
    assert re.search(f"megads: the run failed: {headline}", errors), errors
    assert re.search(r"step after iteration 0, in .*ranks_script.py:\d+ hang.*: ranks 0, 2\n", errors), errors
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert (outcome.rank, outcome.host, outcome.kind) == (1, socket.gethostname(), "hang")


def paused(run_dir: Path) -> int:
    """Return the rank of the run that is stopped."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = file.read_text(errors="replace").rpartition(")")[2].split()[0]
            command = (file.parent / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if state == "T" and str(run_dir) in command:
            return int(file.parent.name)
    raise AssertionError("no rank is stopped")


def test_a_stopped_rank_does_not_survive_an_abort(launch, tmp_path):
    started = launch("local", 2, "stopped")
    started.wait_for("ready")
    started.wait_for_text("stopped by signal 19 (SIGSTOP)")
    paused(tmp_path)
    started.process.send_signal(signal.SIGINT)
    started.wait_for_text("press Ctrl-C again to abort")
    started.process.send_signal(signal.SIGINT)
    code, errors = started.end()
    assert code == 130, errors


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_ranks_end_when_their_starter_is_killed(launch, tmp_path, starter):
    started = launch(starter, 2, "file")
    started.wait_for("ready")
    os.kill(children(started.process.pid)[0], signal.SIGKILL)
    code, errors = started.end()
    assert code == 137, errors
    assert "the ranks ended without an outcome (the launcher was killed by signal 9)" in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_ranks_that_save_nothing_are_ended_by_the_first_signal(tmp_path, number, code):
    script = (
        "import os, sys, time; from megads.launch.launchers.plan import LaunchPlan; "
        "from megads.launch.supervise.run import run_plan;"
        "from pathlib import Path;"
        "sys.exit(run_plan(LaunchPlan(('sleep', '300'), {}), Path(sys.argv[1]), os.environ, saves=False))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + PATIENCE_S
    while not any("sleep" in Path(f"/proc/{pid}/comm").read_text() for pid in children(process.pid)):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert errors == "megads: stopping; whatever does not end within 10 s is killed\n"


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_second_interrupt_ends_ranks_that_ignore_everything(launch, starter):
    started = launch(starter, 2, "stubborn")
    started.wait_for("ready")
    started.process.send_signal(signal.SIGINT)
    started.wait_for_text("press Ctrl-C again to abort")
    assert started.process.poll() is None
    started.process.send_signal(signal.SIGINT)
    code, errors = started.end()
    assert code == 130, errors


def test_ranks_that_outlive_a_reported_failure_are_ended(launch):
    code, errors = launch("local", 2, "failed").end()
    assert code == 1, errors


@pytest.mark.parametrize("starter", WITH_TORCHRUN)
def test_killed_launcher_leaves_no_rank(launch, tmp_path, starter):
    started = launch(starter, 2, "file")
    started.wait_for("ready")
    started.process.kill()
    end = time.monotonic() + PATIENCE_S
    while processes_of(tmp_path):
        assert time.monotonic() < end, processes_of(tmp_path)
        time.sleep(0.05)


@pytest.mark.parametrize(("mode", "expected"), [("wrong", 2), ("silent", 1)])
def test_exit_code_without_success(launch, mode, expected):
    code, errors = launch("local", 2, mode).end()
    assert code == expected, errors
    assert ("the ranks ended without an outcome" in errors) == (mode == "silent")


def test_files_of_an_earlier_run_do_not_count(launch, tmp_path):
    (tmp_path / "outcome.json").write_text('{"exit_code": 75}')
    (tmp_path / "stop").touch()
    code, _ = launch("local", 2, "silent").end()
    assert code == 1
    assert not (tmp_path / "stop").exists()
