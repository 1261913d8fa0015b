"""``megads worker``: which run it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("words", [[], ["runs/7B", "--config", "runs/7B/config.yaml"]])
def test_a_rank_needs_one_run(words):
    done = CliRunner().invoke(main, ["worker", *words])
    assert done.exit_code == 2
    assert done.stderr.startswith("megads: pass the run folder, e.g. megads worker runs/7B; `")


def test_a_rank_by_hand_needs_a_prepared_folder(tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "MACHINE": "cpu"}
    words = [sys.executable, "-m", "megads", "worker", str(tmp_path / "none")]  # it ignores and blocks signals
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert str(tmp_path / "none") in done.stderr
    assert done.stderr.count("\n") == 1
