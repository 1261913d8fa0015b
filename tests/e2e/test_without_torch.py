"""Up to the start of the ranks nothing needs torch: a login node without it can plan a run."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("click", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    *("PyYAML", "numpy", "orjson", "tokenizers"),
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python of its own with a few packages and neither torch nor deepspeed."""
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or []:
            top = file.parts[0]
            if top != ".." and not (site / top).exists():
                (site / top).symlink_to(Path(importlib.metadata.distribution(package).locate_file(top)).resolve())
    return folder / "bin/python"


def run(python, *words, **settings):
    env = {"PATH": os.environ["PATH"], "MEGADS_PYTHON": str(python), "MACHINE": "cpu", **settings}
    return subprocess.run(["bash", ROOT / "train_7B.sh", *words], env=env, capture_output=True, text=True)


def test_there_is_no_torch(python):
    done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    assert "No module named 'torch'" in done.stderr


def test_dry_run_shows_everything_and_starts_nothing(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(python, "--dry-run", TP="2", NLAYERS="10")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split() == ["model.num_layers", "10", "env", "NLAYERS"] for line in lines)
    assert any(line.split() == ["parallel.tensor", "2", "env", "TP"] for line in lines)
    assert "engine   native" in lines
    assert "megads.launch.launchers.local" in lines[-1]
    assert lines[-1].endswith("-m megads worker --config runs/7B/config.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_real_start_says_what_is_missing_in_one_line(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(python)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("megads: torch is not installed in this Python; pip install -c envs/constraints.txt torch")
    assert list(tmp_path.iterdir()) == []
