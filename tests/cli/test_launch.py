"""``megads launch``: what it takes, and what it refuses in one line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_any_program import start

ROOT = Path(__file__).parents[2]


def test_closed_streams_do_not_end_it(tmp_path):
    line = shlex.join([sys.executable, "-m", "megads", "launch", "-n", "1", "--", "sh", "-c", "echo && echo >$RANK"])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MACHINE": "cpu"}
    done = subprocess.run(["sh", "-c", f"exec {line} <&- >&- 2>&-"], cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "2"], "Missing argument 'COMMAND...'"),
        (["-n", "2", "--with", "nothing", "--", "true"], "launch.launch_with: 'nothing' is not one of auto, direct"),
        (["--machine", "moon", "--", "true"], "no machine 'moon'; known machines:"),
        (["--hosts", "2", "--", "true"], "NHOSTS=2: this host has 1 host; use at most 1"),
        (["--hostfile", "none", "--", "true"], "HOSTFILE=none: No such file"),
        (["-n", "2", "--", "no-such-program"], "no-such-program: no such program on PATH"),
        (["-n", "2", "--", "script.py"], "script.py: not an executable program; name its interpreter"),
    ],
)
def test_what_can_not_be_launched_is_one_line(tmp_path, words, message):
    (tmp_path / "script.py").write_text("pass\n")
    process = start(tmp_path, *words)
    err = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, err.count("\n")) == (2, 1), err
    assert message in err


def test_settings_that_are_not_of_the_launch_do_not_matter(tmp_path):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MACHINE": "cpu", "TP": "many", "NGPU_PER_HOST": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "megads", "launch", "--dry-run", "--", "true"],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "  MEGADS_NUM_RANKS=3 " in done.stdout
