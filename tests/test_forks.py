"""Which commands the server of tests/forks may fork, and what a forked one shows of itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.forks.become import is_forkable
from tests.forks.popen import Popen

ROOT = Path(__file__).parents[1]
BASE = {"PYTHONPATH": "/root", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("more", "forked"),
    [
        ({"LR": "1", "NCCL_ALGO": "Ring", "PYTHONSAFEPATH": "1"}, True),
        ({"NCCL_ALGO": "Tree"}, False),
        ({"OMP_NUM_THREADS": "2"}, False),
        ({"PYTHONPATH": "/other:/root"}, False),
    ],
)
def test_what_an_import_may_read_needs_a_new_interpreter(more, forked):
    assert is_forkable({**BASE, **more}, BASE) == forked


def test_a_folder_with_nothing_but_what_is_planted_is_forked(tmp_path):
    env = {**BASE, "PYTHONPATH": f"{tmp_path}:/root"}
    (tmp_path / "sitecustomize.py").touch()
    assert is_forkable(env, BASE)
    (tmp_path / "torch.py").touch()
    assert not is_forkable(env, BASE)


@pytest.mark.slow
def test_a_forked_command_runs_what_is_planted_and_shows_its_environment_and_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "print(open('/proc/self/environ').read().split('\\0')[:5])\n"
        "print(open('/proc/self/cmdline').read().split('\\0')[1:4])\n"
    )
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env = {"A": "1", **kept, "PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1"}
    with Popen([sys.executable, "-m", "megads", "config", "lr"], env=env, cwd=tmp_path, stdout=-1, text=True) as done:
        out, _ = done.communicate(timeout=60)
    shown, command = out.splitlines()[:2]
    assert "'A=1'" in shown
    assert command == str(["-m", "megads", "config"])
    assert done.returncode == 0
    assert done._ended_at >= 0, "it was a new interpreter"
