"""`megads bench --tiny` as a user calls it, on two ranks that it starts itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_two_ranks_start_themselves_and_report_once(megads, tmp_path):
    done = megads(
        "bench", "--tiny", "-n", "2", "--parts", "matmul,collectives,training", "--report", "gpu.md", "--json", "a.json"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bench        ok: 3 parts") == 1
    text = (tmp_path / "gpu.md").read_text()
    assert "| ranks | 2 ranks on 1 host |" in text
    assert "| all_reduce | all ranks | 2 |" in text
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["ok"]
    assert found["parts"]["training"]["rows"][0]["loss"] > 0


@pytest.mark.mpi
def test_ranks_that_mpiexec_starts_meet(megads, tmp_path):
    line = ["bench", "--tiny", "--parts", "collectives", "--json", "a.json"]
    words = ["mpiexec.hydra", "-n", "2", sys.executable, "-m", "megads", *line]
    done = subprocess.run(words, cwd=tmp_path, env=megads.env(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["ranks"], found["parts"]["collectives"]["status"]) == ("2 ranks on 1 host", "done")
