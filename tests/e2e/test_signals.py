"""Stops, ends and failures of real runs under the real launchers: checkpoint, exit code, time to exit, message.

What needs no model (every signal under every launcher) is in tests/launch/supervise/test_run.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from megads.config.run_folder import ENDS_AT
from megads.launch.supervise.processes import children
from megads.launch.supervise.rank_parent import KILL_AFTER_S
from megads.monitor.run_state.attempts import read_attempts
from megads.monitor.run_state.outcome import Heartbeat, write_heartbeat
from tests.e2e.conftest import SLOW
from tests.e2e.test_resume import numbers, wait_for_step

HOST = socket.gethostname()
LONG = {"TRAIN_ITERS": "4000", "EVAL_INTERVAL": "0"}
OPENMPI, MPICH = (pytest.param(name, marks=pytest.mark.mpi) for name in ("openmpi", "mpich"))
LAUNCHERS = ["local", OPENMPI, MPICH]
SOON_S = 60


def outcome_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "outcome.json").read_text())


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def ranks_in(folder: Path) -> list[int]:
    """Return the process ids of the ranks whose working folder this is, by rank: the children of their guards."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            command = process.joinpath("cmdline").read_bytes()
            is_rank = b"\0worker\0" in command and command == Path(f"/proc/{parent}/cmdline").read_bytes()
            if not is_rank or process.joinpath("cwd").resolve() != folder:
                continue
            env = process.joinpath("environ").read_text(errors="replace").split("\0")
        except OSError:
            continue
        names = r"(MEGADS_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)=(\d+)"
        # srun, too, is two processes of one command line, but it has no rank.
        found |= {int(match[2]): int(process.name) for each in env if (match := re.fullmatch(names, each))}
    return [found[rank] for rank in sorted(found)]


def has_deadline(pid: int) -> bool:
    """Return whether a rank was told when its allocation ends."""
    return f"\0{ENDS_AT}=" in Path(f"/proc/{pid}/environ").read_text()


def gone(pids: list[int]) -> bool:
    """Return whether none of the processes runs any more, or soon does."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stopped_well(folder: Path, code: int, err: str) -> int:
    """Check that a run stopped with a checkpoint of its last iteration; return the iteration."""
    assert code == 75, err
    outcome = outcome_of(folder)
    assert (outcome["exit_code"], outcome["kind"]) == (75, "stopped")
    assert checkpoints(folder)[-1] == f"iter_{outcome['iteration']:07d}"
    return int(str(outcome["iteration"]))


@pytest.mark.parametrize(
    ("starter", "number"),
    [
        ("local", signal.SIGTERM),
        pytest.param("openmpi", signal.SIGUSR1, marks=pytest.mark.mpi),
        pytest.param("mpich", signal.SIGINT, marks=pytest.mark.mpi),
    ],
)
def test_a_signal_to_the_launcher_saves_and_stops(megads, starter, number):
    process = megads.start("train", RUN_DIR="r", TP="2", LAUNCH_WITH=starter, **LONG)
    wait_for_step(process, megads.folder / "r", 3)
    begin = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=SOON_S)
    assert time.monotonic() - begin < SOON_S
    assert stopped_well(megads.folder / "r", process.returncode, err) >= 3
    assert "asked to stop; saved at iteration" in err
    beat = json.loads((megads.folder / "r/heartbeat.json").read_text())
    assert (beat["phase"], beat["host"]) == ("end", HOST)
    assert beat["save_s"] > 0


@pytest.mark.interpreters  # a set-up that takes its time
def test_ctrl_c_twice_during_the_set_up_of_one_rank_leaves_an_outcome(megads):
    process = megads.start("train", RUN_DIR="r", TP="1", **LONG)
    until = time.monotonic() + SOON_S
    while b"\0worker\0" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    while not (line := process.stderr.readline()).startswith("megads: stopping"):
        assert line, "it ended"
    assert line == "megads: stopping after this step and saving; press Ctrl-C again to abort\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "megads: interrupted before the run could save"
    outcome = outcome_of(megads.folder / "r")
    assert (outcome["exit_code"], outcome["kind"]) == (130, "killed")
    assert megads("runs", "r").stdout.splitlines()[1].split()[1] == "failed"


@pytest.mark.mpi
def test_a_launcher_killed_while_a_rank_is_stopped_leaves_nothing(megads):
    """Nobody is left who would continue the rank, and mpiexec waits for it."""
    process = megads.start("train", RUN_DIR="r", TP="2", LAUNCH_WITH="mpich", **LONG)
    wait_for_step(process, megads.folder / "r", 3)
    run = [process.pid, *children(process.pid, recursive=True)]
    assert len(run) >= 6  # launcher, mpiexec, its proxy, two guards, two ranks
    os.kill(ranks_in(megads.folder)[1], signal.SIGSTOP)
    time.sleep(0.5)
    process.kill()
    until = time.monotonic() + KILL_AFTER_S + 10
    while not gone(run):
        assert time.monotonic() < until
    process.communicate(timeout=SOON_S)


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_a_killed_rank_is_named_and_the_run_ends(megads, starter):
    settings = {**LONG, "SAVE_INTERVAL": "2", "WALLTIME": "1h"}
    process = megads.start("train", RUN_DIR="r", TP="2", LAUNCH_WITH=starter, **settings)
    wait_for_step(process, megads.folder / "r", 3)
    ranks = ranks_in(megads.folder)
    assert len(ranks) == 2
    assert all(map(has_deadline, ranks))
    begin = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    _, err = process.communicate(timeout=SOON_S)
    assert time.monotonic() - begin < SOON_S
    assert process.returncode == 1, err
    assert f"[rank 1 host {HOST}] killed by signal 9 (SIGKILL)\n" in err
    assert f"megads: the run failed: rank 1 host {HOST}: killed by signal 9 (SIGKILL)\n" in err
    outcome = outcome_of(megads.folder / "r")
    assert (outcome["kind"], outcome["rank"], outcome["host"]) == ("killed", 1, HOST)
    assert "iter_0000002" in checkpoints(megads.folder / "r")
    assert gone(ranks)


@pytest.mark.slow
@pytest.mark.mpi
def test_a_stuck_rank_is_named_and_the_run_ends(megads):
    """Rank 0, which holds the store: the others cannot even ask who is missing."""
    settings = {**LONG, "SAVE_INTERVAL": "2", "MEGADS_TIMEOUT_S": "8", "LAUNCH_WITH": "openmpi"}
    process = megads.start("train", RUN_DIR="r", TP="2", **settings)
    wait_for_step(process, megads.folder / "r", 5)
    ranks = ranks_in(megads.folder)
    begin = time.monotonic()
    os.kill(ranks[0], signal.SIGSTOP)
    _, err = process.communicate(timeout=SOON_S)
    assert time.monotonic() - begin < SOON_S
    assert process.returncode == 1, err
    assert f"[rank 0 host {HOST}] stopped by signal 19 (SIGSTOP)" in err
    said = rf"megads: no progress for \d+ s in \w+ after iteration \d+: rank 0 host {re.escape(HOST)} did not answer"
    assert re.search(said, err)
    # The stack of the rank that waits.
    assert f"[rank 1 host {HOST}]   File " in err
    assert "megads/train/loop.py" in err
    outcome = outcome_of(megads.folder / "r")
    assert (outcome["exit_code"], outcome["kind"], outcome["rank"]) == (1, "hang", 0)
    assert "iter_0000002" in checkpoints(megads.folder / "r")
    assert gone(ranks)


@pytest.mark.slow
def test_the_end_of_the_allocation_is_kept(megads):
    """That each launcher tells its ranks of the end, test_a_killed_rank_is_named_and_the_run_ends sees."""
    megads("--version")  # what is forked from is there when the clock begins
    for walltime in (24, 90):  # a busy host may need the first to start
        (megads.folder / "r").mkdir(exist_ok=True)
        # An earlier start measured a save; else the first one is given more time.
        write_heartbeat(megads.folder / "r", Heartbeat(0, "end", 0.0, 0.0, 1, HOST, save_s=0.1))
        begin, given = time.time(), ("--walltime", f"{walltime}s")
        done = megads.train("r", *given, TP="2", LAUNCH_WITH="local", PYTHONPATH=megads.plant(SLOW), **LONG)
        assert time.time() - begin < walltime
        if megads.losses("r"):
            break
    assert time.time() - begin > walltime - 14
    assert stopped_well(megads.folder / "r", done.returncode, done.stderr) >= 1
    assert re.search(r"ends     at \d\d:\d\d:\d\d( on \S+)?, in \d+s; the run saves and exits with 75", done.stderr)
    assert re.search(r"stopped  \d+ of 4000 iterations; the allocation ends at \d\d:\d\d:\d\d", done.stderr)
    assert re.search(
        r"time     \d+ iterations left need about \S+; the allocation ends at .*: about \d+ fit", done.stderr
    )


def test_without_time_for_a_step_nothing_is_begun(megads):
    done = megads.train("r", TP="2", WALLTIME="11s", **LONG)
    assert done.returncode == 75, done.stderr
    assert "before the first step" in done.stderr
    assert megads.losses("r") == []


def test_a_wrong_wall_time_is_refused(megads):
    done = megads.train("r", WALLTIME="6")
    assert done.returncode == 2
    assert done.stderr == (
        "megads: WALLTIME=6: not a time; write hours like 6:00:00 or 6h, minutes like 30:00 or 30m, days "
        "like 1-00:00:00\n"
    )
    assert not (megads.folder / "r").exists()


def test_a_stop_during_a_validation_does_not_wait_for_its_end_and_loses_nothing(megads):
    settings = {"TRAIN_ITERS": "4", "EVAL_INTERVAL": "2", "EVAL_ITERS": "100", "EVAL_AT_START": "0", "TP": "2"}
    process = megads.start("train", RUN_DIR="r", **settings)
    wait_for_step(process, megads.folder / "r", 2)
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=SOON_S)
    assert stopped_well(megads.folder / "r", process.returncode, err) == 2
    assert not any("valid_loss" in row for row in megads.rows("r"))
    assert megads.train("r", **settings).returncode == 0
    assert [row["iteration"] for row in megads.rows("r") if "valid_loss" in row] == [2, 4]


@pytest.mark.slow
def test_three_killed_ranks_are_survived_with_the_losses_of_an_undisturbed_run(megads):
    settings = {"TP": "2", "TRAIN_ITERS": "40", "EVAL_INTERVAL": "40", "SAVE_INTERVAL": "10", "CKPT_KEEP": "0"}
    whole = megads.train("whole", **settings)
    assert whole.returncode == 0, whole.stderr
    process = megads.start("train", "--max-restarts", "3", RUN_DIR="r", PYTHONPATH=megads.plant(SLOW), **settings)
    for rank, step in ((1, 12), (0, 22), (1, 32)):
        wait_for_step(process, megads.folder / "r", step)
        os.kill(ranks_in(megads.folder)[rank], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.count("killed by signal 9 (SIGKILL)\n") == 6
    assert "megads: restart 3 of 3 from iteration " in err
    assert numbers(megads.rows("r")) == numbers(megads.rows("whole"))
    rows = read_attempts(megads.folder / "r")
    assert [(row.exit_code, row.rank, row.kind) for row in rows] == [
        (1, 1, "killed"),
        (1, 0, "killed"),
        (1, 1, "killed"),
        (0, -1, "done"),
    ]
    assert all(row.began % 10 == 0 for row in rows)
    assert {(row.num_ranks, row.layout[:20]) for row in rows} == {(2, "TP 2 PP 1 SP 1 DP 1 ")}
    log = (megads.folder / "r/log/run.log").read_text()
    assert "restart 1 of 3 from iteration 10" in log


def test_a_wrong_setting_is_not_tried_again(megads):
    assert megads.train("r", EXIT_INTERVAL="1").returncode == 75
    planted = megads.folder / "planted"
    planted.mkdir()
    (planted / "deepspeed.py").write_text("import nothing_of_this_name\n")
    path = f"{planted}:{os.environ.get('PYTHONPATH', '')}"
    done = megads.train("r", "--max-restarts", "5", TP="1", ENGINE="deepspeed", PYTHONPATH=path)
    assert done.returncode != 0
    assert done.stderr.count("restart ") == 0, done.stderr
