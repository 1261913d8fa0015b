"""What is kept from the beginning of a start on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.evidence import TAIL
from megads.launch.supervise.run import run_once

READS = """
import os, sys
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.run import run_once
from pathlib import Path
print("earlier", flush=True)
program = "print('x' * {size}); print('srun: error: n1')"
ended = run_once(LaunchPlan((sys.executable, "-c", program), {}), Path("."), os.environ)
Path("said").write_text(ended.said)
"""


@pytest.mark.interpreters
@pytest.mark.parametrize("size", [5, 2 * TAIL])
def test_what_is_printed_into_a_file_is_read_again_without_what_was_there(tmp_path, size):
    with open(tmp_path / "out", "w") as file:
        file.write("of the job before\n")
        file.flush()
        program = READS.replace("{size}", str(size))
        subprocess.run([sys.executable, "-c", program], stdout=file, stderr=file, cwd=tmp_path, check=True)
    said = (tmp_path / "said").read_text()
    assert said.endswith("srun: error: n1\n")
    assert "of the job before" not in said
    assert "earlier" not in said
    assert len(said) <= TAIL


def test_how_much_of_the_allocation_was_left_is_known_from_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.launch.supervise.run.OUTCOME_WAIT_S", 0.0)
    for ends, expected in (("4102444800", True), ("", False)):
        plan = LaunchPlan((sys.executable, "-c", ""), {"MEGADS_ENDS_AT": ends})
        left = run_once(plan, tmp_path, os.environ).left_s
        assert (left is not None and left > 1e6) == expected
