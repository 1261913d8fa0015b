"""No test and no Python file is skipped because of where it is: both tools skip some folders by their names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OFTEN_SKIPPED = ("dist", "build", "venv", "node_modules", "site-packages")


def _files_of_the_project(pattern: str) -> set[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in listed if (ROOT / line).exists()}


def test_every_test_file_is_collected(tmp_path):
    """With this project's settings pytest goes into every folder; a tree of empty tests says so in a second."""
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    expected = {name for name in _files_of_the_project("tests/*.py") if Path(name).name.startswith("test_")}
    expected |= {f"tests/{folder}/test_any.py" for folder in OFTEN_SKIPPED}
    for name in expected:
        path = tmp_path / name
        for folder in [path.parent, *path.parent.parents]:
            if folder == tmp_path:
                break
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        path.write_text("def test_one(): pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    collected = {line.split("::")[0] for line in shown.splitlines() if "::" in line}
    assert collected == expected


def test_every_python_file_is_linted():
    """A scratch file in a folder of each name is listed too: no name hides what is put there later."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    linted = {str(Path(line).relative_to(ROOT)) for line in shown.splitlines()}
    assert linted >= _files_of_the_project("*.py")


def test_no_folder_is_skipped_by_its_name_when_linting(tmp_path):
    shutil.copy(ROOT / ".ruff.toml", tmp_path)
    expected = set()
    for folder in OFTEN_SKIPPED:
        (tmp_path / "megads" / folder).mkdir(parents=True)
        (tmp_path / "megads" / folder / "any.py").touch()
        expected.add(f"megads/{folder}/any.py")
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert {str(Path(line).relative_to(tmp_path)) for line in shown.splitlines() if line.endswith("any.py")} == expected
