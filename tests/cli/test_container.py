"""``megads container check``, and --container where it cannot work: one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli.container import container
from tests.launch.test_any_program import start

ROOT = Path(__file__).parents[2]


def test_what_is_missing_is_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGADS_CONTAINER", raising=False)
    monkeypatch.setattr("megads.doctor.container.CHECKS", ())
    done = CliRunner().invoke(container, ["check"], env={"MEGADS_NUM_RANKS": "2"})
    assert done.exit_code == 1
    assert done.output.startswith("FAIL launcher")
    done = CliRunner().invoke(container, ["check", "--folder", "runs"], env={"MEGADS_NUM_RANKS": ""})
    assert (done.exit_code, done.output.count("\n")) == (0, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--container", "none.sif", "--", "true"], "CONTAINER=none.sif: not found; build it first"),
        (["--container", "x.sif", "--with", "torchrun", "--", "true"], "use LAUNCH_WITH=auto"),
        (["--container", "x.sif", "--", "true"], "nothing on PATH starts a SIF file; looked for apptainer"),
    ],
)
def test_launch_refuses_in_one_line(tmp_path, words, message):
    (tmp_path / "x.sif").touch()
    process = start(tmp_path, *words)
    err = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, err.count("\n")) == (2, 1), err
    assert message in err


def test_submit_takes_a_container(tmp_path):
    (tmp_path / "job.sh").touch()
    (tmp_path / "x.sif").touch()
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "MACHINE": "polaris"}

    def submitted(image: str) -> subprocess.CompletedProcess[str]:
        words = ["submit", "--dry-run", "--account", "A", "--walltime", "1:00:00", "--container", image, "job.sh"]
        return subprocess.run(
            [sys.executable, "-m", "megads", *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )

    assert "export CONTAINER=x.sif\n" in submitted("x.sif").stdout
    refused = submitted("y.sif")
    assert refused.returncode == 2
    assert refused.stderr.startswith("megads: CONTAINER=y.sif: not found")
