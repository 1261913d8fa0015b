"""The measurement runs, and everybody writes the same tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_kinds_of_tokenizers_at_a_small_size(tmp_path):
    words = ["--bytes", "2e6", "--peer-bytes", "4e5", "--runs", "1", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.preprocess", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "byte-level BPE: all outputs are equal" in done.stdout
    assert done.stdout.count("whole command  ") == 3
    assert done.stdout.count("pool of workers, document by document") == 3
    assert list(tmp_path.iterdir()) == []
