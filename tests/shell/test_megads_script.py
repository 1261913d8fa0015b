"""``megads.sh``, and what a Python or a shell that cannot run megads says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("train_7B.sh", "launchers/train.sh", "megads.sh")


def _run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), **env}
    return subprocess.run(words, cwd=cwd, env=plain, capture_output=True, text=True, timeout=120, check=False)


def test_from_any_folder_and_through_a_link(tmp_path):
    link = tmp_path / "megads"
    link.symlink_to(ROOT / "megads.sh")
    done = _run(str(link), "config", "--presets", cwd=tmp_path, MEGADS_PYTHON=sys.executable, MACHINE="cpu")
    assert done.returncode == 0, done.stderr
    assert "7B " in done.stdout


@pytest.mark.skipif(shutil.which("dash") is None, reason="no other shell here")
@pytest.mark.parametrize("script", SCRIPTS)
def test_another_shell_hands_over_to_bash(script, tmp_path):
    words = ["--help"] if script != "megads.sh" else ["train", "--help"]
    python = {"MEGADS_PYTHON": sys.executable, "MACHINE": "cpu"}
    done = _run("dash", str(ROOT / script), *words, cwd=tmp_path, **python)
    assert done.returncode == 0, done.stderr
    assert "Illegal option" not in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "megads: no command 'trian'; did you mean train?"),
        (["data", "preproces"], "megads: no command 'preproces'; did you mean preprocess?"),
        (["xyzzy"], "megads: no command 'xyzzy'; `python -m megads --help` lists what there is"),
        (
            ["train", "--preset", "tiny", "TP=2"],
            "megads: TP=2 is an argument, and settings are variables: put TP=2 in front of the command",
        ),
    ],
)
def test_a_slip_of_the_command_line_is_one_line(words, line, tmp_path):
    done = _run(sys.executable, "-m", "megads", *words, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr.strip(), done.stdout) == (2, line, "")


def test_a_python_without_packages_says_what_to_do(tmp_path):
    # -S skips site-packages, -E what the environment adds.
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import runpy; runpy.run_module('megads', run_name='__main__')"
    done = _run(sys.executable, "-S", "-E", "-c", code, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"megads: {sys.executable} has no package click; use ./megads.sh")
    assert done.stderr.count("\n") == 1


def test_an_old_python_says_what_to_do(tmp_path):
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; sys.version_info = (3, 9, 1, 'final', 0); "
        "import runpy; runpy.run_module('megads', run_name='__main__')"
    )
    done = _run(sys.executable, "-S", "-E", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"Python 3.10 or later is needed and {sys.executable} is 3.9; ./megads.sh" in done.stderr
