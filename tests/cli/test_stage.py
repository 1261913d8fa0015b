"""``megads stage``: what it prints for a shell, what it says, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def stage(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MACHINE": "cpu", **variables}
    command = [sys.executable, "-m", "megads", "stage", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.fixture
def python(tmp_path):
    """Give a Python whose environment is small."""
    (tmp_path / "env/bin").mkdir(parents=True)
    path = tmp_path / "env/bin/python"
    path.write_text(f'#!/bin/sh\necho \'["{tmp_path}/env", "/usr"]\'\n')
    path.chmod(0o755)
    return str(path)


def test_a_shell_can_eval_what_it_prints(tmp_path, python):
    done = stage(tmp_path, "--to", str(tmp_path / "node"), MEGADS_PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert "archive  " in done.stderr
    assert "staged   " in done.stderr
    show = 'echo "$MEGADS_PYTHON|$PYTHONPATH|$(command -v python)"'
    shown = subprocess.run(["sh", "-c", f"{done.stdout}\n{show}"], capture_output=True, text=True, check=True).stdout
    (place,) = [path for path in (tmp_path / "node").iterdir() if path.is_dir()]
    assert shown.strip().split("|") == [f"{place}/env/bin/python", f"{place}/checkout", f"{place}/env/bin/python"]
    removed = stage(tmp_path, "--to", str(tmp_path / "node"), "--clean", MEGADS_PYTHON=python)
    assert removed.stderr == "removed  2 staged files on 1 host\n"
    assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "node"], "STAGE_DIR=node: is not an absolute path"),
        (["--to", "/dev/null/x"], "staging failed on 1 of 1 host ("),
        (["--hosts", "2"], "NHOSTS=2: this host has 1 host; use at most 1"),
        (["--hostfile", "none"], "HOSTFILE=none: No such file"),
    ],
)
def test_what_cannot_be_staged_is_one_line(tmp_path, python, words, message):
    done = stage(tmp_path, *words, MEGADS_PYTHON=python)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
