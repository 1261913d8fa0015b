from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands in for every Python: it makes "environments" and "installs" in no time, and shows
# what it was asked to run. STUB_PIP says how an install ends.
STUB = r"""#!/bin/bash
case "$*" in
  "-V") echo "Python ${STUB_VERSION:-3.11.0}" ;;
  "-c import sys; sys.exit"*) [[ "${STUB_VERSION:-}" != 3.9* ]] ;;
  *has_packages.py*) [[ "$0" == "${STUB_COMPLETE:-}" ]] ;;
  "-m venv "*)
    echo venv >>"${STUB_LOG}"
    [[ "${STUB_PIP:-}" != noensure ]] || { echo "Error: ensurepip is not available"; exit 1; }
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip install"*)
    echo "pip $*" >>"${STUB_LOG}"
    echo "Collecting numpy"
    case "${STUB_PIP:-}" in
      slow) sleep 1 ;;
      hang) touch "$(dirname "$0")/half"; sleep 600 ;;
      disk) echo "ERROR: [Errno 28] No space left on device"; exit 1 ;;
      net) echo "Failed to establish: Temporary failure in name resolution"; exit 1 ;;
      other) echo "ERROR: something odd"; exit 1 ;;
    esac ;;
  *) printf '%s\n' "python=$0" "cwd=${PWD}" "machine=${MACHINE}" "path=${PYTHONPATH}" "TP=${TP:-}" "$@" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the shell part of the checkout, in a folder with a space in its name."""
    root = tmp_path / "check out"
    for name in ("ALCF", "envs", "launchers"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("train_7B.sh", "setup.cfg"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """The stub Python, as python3 in a folder of its own."""
    program = tmp_path / "stub" / "python3"
    program.parent.mkdir()
    program.write_text(STUB)
    program.chmod(0o755)
    return program


@pytest.fixture
def env(tmp_path: Path, stub: Path) -> dict[str, str]:
    """An environment in which python3 is the stub and nothing is active."""
    return {
        "PATH": f"{stub.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "STUB_LOG": str(tmp_path / "log"),
        "MACHINE": "cpu",
    }


@pytest.fixture
def bash(env: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run bash with ``env`` changed by keywords (None removes) and return what it did."""

    def run(*words: object, cwd: Path = tmp_path, **changes: object) -> subprocess.CompletedProcess[str]:
        merged = {name: str(value) for name, value in (env | changes).items() if value is not None}
        argv = ["bash", *map(str, words)]
        return subprocess.run(argv, cwd=cwd, env=merged, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def installs(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the pip calls so far."""

    def read() -> list[str]:
        log = tmp_path / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith("pip")]

    return read
