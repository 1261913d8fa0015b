"""Our own launcher of one host, with shells as ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = (
    "import sys; from megads.launch.launchers import local; local.KILL_AFTER_S = 1.0; "
    "sys.exit(local.start_ranks(int(sys.argv[1]), sys.argv[2:]))"
)


def start(folder: Path, ranks: int, script: str) -> subprocess.Popen[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", SCRIPT, str(ranks), "sh", "-c", script]
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=120)
    assert err == ""
    return process.returncode, out


def wait_for(*paths: Path) -> None:
    until = time.monotonic() + 100
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.01)


def test_every_rank_has_its_numbers(tmp_path):
    script = 'echo "$MEGADS_RANK $MEGADS_WORLD_SIZE $MEGADS_LOCAL_RANK $MEGADS_LOCAL_SIZE"'
    code, out = end(start(tmp_path, 3, script))
    assert (code, sorted(out.splitlines())) == (0, ["0 3 0 3", "1 3 1 3", "2 3 2 3"])


@pytest.mark.parametrize(
    ("leave", "code"), [("exit 0", 0), ("exit 7", 7), ("exit 75", 75), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_exit_code_is_that_of_the_rank_that_failed(tmp_path, leave, code):
    assert end(start(tmp_path, 2, f"[ $MEGADS_RANK = 0 ] && exit 0; {leave}"))[0] == code


def test_a_failure_ends_the_other_ranks_and_kills_one_that_does_not_listen(tmp_path):
    script = """
        trap ': >heard-'$MEGADS_RANK TERM
        touch ready-$MEGADS_RANK
        if [ $MEGADS_RANK = 2 ]; then while [ ! -e ready-0 ] || [ ! -e ready-1 ]; do :; done; exit 3; fi
        [ $MEGADS_RANK = 0 ] || trap ': >heard-1; exit 0' TERM
        while :; do sleep 0.05; done
    """
    begin = time.monotonic()
    assert end(start(tmp_path, 3, script))[0] == 3
    assert time.monotonic() - begin < 100
    assert (tmp_path / "heard-0").exists()
    assert (tmp_path / "heard-1").exists()


def test_ranks_that_stopped_on_purpose_wait_for_the_others(tmp_path):
    script = "[ $MEGADS_RANK = 0 ] && exit 75; sleep 1; touch saved; exit 75"
    assert end(start(tmp_path, 2, script))[0] == 75
    assert (tmp_path / "saved").exists()


def test_a_failure_after_a_stop_is_a_failure(tmp_path):
    assert end(start(tmp_path, 2, "[ $MEGADS_RANK = 0 ] && exit 75; sleep 0.2; exit 9"))[0] == 9


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_every_rank(tmp_path, number):
    name = number.name.removeprefix("SIG")
    # A shell can not trap what it was started with ignored, as SIGUSR1 here: Python can.
    rank = (
        "import os, signal, sys, time; n = os.environ['MEGADS_RANK']; "
        f"signal.signal(signal.SIG{name}, lambda *_: (open('heard-' + n, 'w'), os._exit(75))); "
        "open('ready-' + n, 'w'); time.sleep(300)"
    )
    process = start(tmp_path, 2, f'exec {sys.executable} -S -c "{rank}"')
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    process.send_signal(number)
    assert end(process)[0] == 75
    assert (tmp_path / "heard-0").exists()
    assert (tmp_path / "heard-1").exists()


def test_a_stop_that_comes_before_a_rank_listens_does_not_kill_it(tmp_path):
    process = start(tmp_path, 2, "touch ready-$MEGADS_RANK; sleep 0.5; touch done-$MEGADS_RANK")
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == 0
    assert (tmp_path / "done-1").exists()


def test_ranks_end_with_their_launcher(tmp_path):
    process = start(
        tmp_path, 2, "echo $$ >pid-$MEGADS_RANK.new; mv pid-$MEGADS_RANK.new pid-$MEGADS_RANK; exec sleep 600"
    )
    wait_for(tmp_path / "pid-0", tmp_path / "pid-1")
    process.kill()
    process.communicate(timeout=120)
    until = time.monotonic() + 100
    for rank in "01":
        while Path("/proc", (tmp_path / f"pid-{rank}").read_text().strip()).exists():
            assert time.monotonic() < until
            time.sleep(0.02)


def test_it_imports_nothing_large():
    script = "import sys, megads.launch.launchers.local; "
    script += "print(sorted({'torch', 'yaml', 'pydantic', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
