"""Runs of an ensemble as small programs: order, places, failures, stops, the exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megads.errors import LaunchError
from megads.launch.ensemble.members import Member
from megads.launch.ensemble.places import Places
from megads.launch.ensemble.supervise import Supervisor, exit_code, is_ensemble, last_line, stop_ensemble
from megads.monitor.run_state.attempts import Attempt, append_attempt
from megads.storage.file_lock import take_lock

PROGRAM = """
import json, os, signal, sys, time
folder = os.environ["RUN_DIR"]
os.makedirs(folder, exist_ok=True)
names = ("LR", "NHOSTS", "NGPU_PER_HOST", "HOSTFILE", "CUDA_VISIBLE_DEVICES")
found = {name: os.environ[name] for name in names if name in os.environ}
if "HOSTFILE" in found:
    found["hosts"] = open(found["HOSTFILE"]).read().split()
with open(folder + "/env.json", "w") as file:
    json.dump(found, file)
def stop(number, frame):
    open(folder + "/saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
open(folder + "/ready", "w").close()
if os.environ.get("WAITS"):
    time.sleep(100)
if os.environ["LR"] == "bad":
    print("megads: ended badly", file=sys.stderr)
sys.exit({"bad": 1, "wrong": 2, "stopped": 75}.get(os.environ["LR"], 0))
"""


def members(*rates: str, **more) -> list[Member]:
    return [Member(f"m{number}", {"LR": rate}, **more) for number, rate in enumerate(rates)]


def supervisor(folder: Path, runs: list[Member], places: Places | None = None, **more) -> Supervisor:
    env = {"PATH": os.environ["PATH"], **more.pop("env", {})}
    return Supervisor(folder, runs, places or Places(("here",), 2), [sys.executable, "-c", PROGRAM], env, **more)


def test_one_fails_and_the_others_continue(tmp_path, capfd):
    asked = supervisor(tmp_path / "e", members("1", "bad", "3", "4", ranks=1))
    assert asked.run() == 1
    assert asked.codes == {"m0": 0, "m1": 1, "m2": 0, "m3": 0}
    err = capfd.readouterr().err
    assert "m1 failed (1) after" in err
    assert ": ended badly; " in err
    assert json.loads((tmp_path / "e/m2/env.json").read_text()) == {"LR": "3", "NHOSTS": "1", "NGPU_PER_HOST": "1"}
    assert is_ensemble(tmp_path / "e")
    assert [each["name"] for each in json.loads((tmp_path / "e/ensemble.json").read_text())["members"]] == list(
        asked.codes
    )


def test_runs_on_several_hosts_get_their_own(tmp_path):
    places = Places(("a", "b", "c"), 4, "CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"), one_host=False)
    asked = supervisor(tmp_path, [Member("big", {"LR": "1"}, hosts=2), Member("small", {"LR": "1"}, ranks=3)], places)
    assert asked.run() == 0
    big, small = (json.loads((tmp_path / name / "env.json").read_text()) for name in ("big", "small"))
    assert (big["hosts"], big["NHOSTS"]) == (["a", "b"], "2")
    assert (small["hosts"], small["NGPU_PER_HOST"], small["CUDA_VISIBLE_DEVICES"]) == (["c"], "3", "0,1,2")
    assert places.free == {host: [0, 1, 2, 3] for host in "abc"}


def wait_for(*paths: Path) -> None:
    until = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.02)


@pytest.mark.parametrize("by", ["signal", "file"])
def test_a_stop_saves_what_runs_and_starts_nothing_more(tmp_path, capfd, by):
    asked = supervisor(tmp_path, members("1", "2", "3", ranks=1), env={"WAITS": "1"})

    def stop() -> None:
        wait_for(tmp_path / "m0/ready", tmp_path / "m1/ready")
        if by == "file":
            stop_ensemble(tmp_path)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert asked.run() == 75
    thread.join()
    assert asked.codes == {"m0": 75, "m1": 75}
    assert "stopping 2 runs after a save; 1 not started" in capfd.readouterr().err
    assert not (tmp_path / "m2").exists()


def test_an_allocation_that_ends_soon_starts_nothing(tmp_path, capfd):
    asked = supervisor(tmp_path, members("1", "2"), ends_at=1100.0, now=lambda: 1000.0)
    assert asked.run() == 75
    assert asked.codes == {}
    assert "the allocation ends in 1m40s: no further run is started" in capfd.readouterr().err


@pytest.mark.parametrize("restarted", [False, True])
def test_hosts_that_a_run_excluded_are_excluded_for_the_others(tmp_path, capfd, restarted):
    (tmp_path / "m0").mkdir()
    earlier = Attempt("", 0, 1.0, 2.0, ("b",), 1, exit_code=1, excluded=("b",))
    append_attempt(tmp_path / "m0", earlier)
    append_attempt(tmp_path / "m0", Attempt("", 0, 3.0, 4.0, ("a",), 1, exit_code=1, excluded=("a",)))
    if restarted:
        append_attempt(tmp_path / "m0", Attempt("", 1, 5.0, 6.0, ("c",), 1))
    places = Places(("a", "b"), 1, one_host=False)
    runs = [*members("bad", "2"), Member("two", {"LR": "1"}, hosts=2)]
    asked = supervisor(tmp_path, runs, places)
    assert asked.run() == 1
    assert asked.codes == {"m0": 1, "m1": 0, "two": 1}
    err = capfd.readouterr().err
    assert "host a is excluded for the other runs, as m0 did" in err
    assert "two is not started: hosts: 2, and 1 host can be used; use at most 1" in err


def test_two_ensembles_in_one_folder_are_refused(tmp_path):
    lock = take_lock(tmp_path / "ensemble.lock")
    assert lock is not None
    with lock, pytest.raises(LaunchError, match="another ensemble is running there"):
        supervisor(tmp_path, members("1")).run()
    with pytest.raises(LaunchError, match="its ensemble is not running"):
        stop_ensemble(tmp_path)


def test_a_size_that_fits_nowhere_starts_nothing(tmp_path):
    with pytest.raises(LaunchError, match="m0: ranks: 9"):
        supervisor(tmp_path / "e", members("1", ranks=9)).run()
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 75], 75), ([2, 2], 2), ([0, 2], 1), ([75, 137], 1), ([1, 2], 1), ([75, 75], 75)],
)
def test_the_exit_code_of_all(codes, expected):
    assert exit_code(codes) == expected


def test_the_last_line_about_a_run(tmp_path):
    path = tmp_path / "log"
    assert last_line(path) == ""
    path.write_text("megads: first\nmegads: second\nTraceback\n")
    assert last_line(path) == "second"


def test_runs_of_an_ensemble_that_is_killed_save_and_stop(tmp_path):
    asked = f"""
import sys
from pathlib import Path
from tests.launch.ensemble.test_supervise import members, supervisor
supervisor(Path({str(tmp_path)!r}), members("1", ranks=1), env={{"WAITS": "1"}}).run()
"""
    process = subprocess.Popen([sys.executable, "-c", asked], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL)
    try:
        wait_for(tmp_path / "m0/ready")
    finally:
        process.kill()
        process.wait()
    wait_for(tmp_path / "m0/saved")
