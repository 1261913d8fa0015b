"""The benchmark of what a rank costs runs, and a rank imports less than a plain program with DeepSpeed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_tells_both_and_their_ratio():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/rank_startup.py"), "--rounds", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = {line[:18].strip(): [float(word) for word in line[18:].split()] for line in done.stdout.splitlines()[1:]}
    ours, plain, ratio = rows["megads"], rows["plain DeepSpeed"], rows["ratio"]
    assert ratio == [pytest.approx(one / other, abs=0.01) for one, other in zip(ours, plain, strict=True)]
    # Modules do not depend on what else the host does.
    assert ratio[1] < 0.8
