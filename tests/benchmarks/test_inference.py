"""The benchmark of the engine runs, and every way generates the same texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_compares_equal_texts():
    words = ["--hidden", "32", "--layers", "1", "--tokens", "4", "--rounds", "1", "--batches", "1", "3"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/inference.py"), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    _, *rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[-1]) for row in rows] == [("1", "1/1"), ("3", "3/3")]
