"""The benchmark of what a rank costs runs, and a rank imports less than a plain program on the same engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_tells_all_and_their_ratios():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/rank_startup.py"), "--rounds", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = {line[:18].strip(): [float(word) for word in line[18:].split()] for line in done.stdout.splitlines()[1:]}
    for ours, plain, most in (("megads", "plain torch", 0.9), ("megads, DeepSpeed", "plain DeepSpeed", 0.8)):
        ratio = rows[f"/ {plain}"]
        assert ratio == [
            pytest.approx(one / other, abs=0.01) for one, other in zip(rows[ours], rows[plain], strict=True)
        ]
        # Modules do not depend on what else the host does.
        assert ratio[1] < most
