"""The first hour, walked in minutes: every command of docs/tutorial.md in one shell, with smaller models."""

import os
import sys
from pathlib import Path

import pytest

from tests.documents import Step, commands, walk
from tests.forks.popen import server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
SMALLER = {"HIDDEN": "64", "SEQ": "64", "GLOBAL_BATCH": "4", "MICRO_BATCH": "4", "EVAL_ITERS": "1"}
PLAN = "megads plan "


def environment(folder: Path) -> dict[str, str]:
    """Return that of a reader on a laptop; commands are forked, but the server that the shell ends."""
    programs = folder / "bin"
    programs.mkdir()
    client = f'"{sys.executable}" -I -S "{ROOT}/tests/forks/client.py" "{server().address}"'
    new = f'[ "$1" = serve ] && exec "{sys.executable}" -m megads "$@"'
    texts = {
        "megads": f'#!/bin/sh\n{new}\nexec {client} "$@"\n',
        "python3": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = f"{programs}:{os.environ['PATH']}"
    return {
        **kept,
        "PATH": path,
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MACHINE": "cpu",
    }


def _walked(tmp_path: Path) -> dict[str, Step]:
    lines = commands(PAGE)
    last = next(number for number, line in enumerate(lines) if line.startswith(PLAN))
    shorter = "export " + " ".join(f"{name}={value}" for name, value in SMALLER.items())
    lines = [shorter, *lines[:last], f"unset {' '.join(SMALLER)} MACHINE", *lines[last:]]
    (folder := tmp_path / "hour").mkdir()
    steps = walk(lines, folder, environment(tmp_path), timeout_s=1500)
    return {step.command: step for step in steps}


@pytest.mark.slow
def test_the_first_hour(tmp_path):
    steps = _walked(tmp_path)
    for step in steps.values():
        sys.stdout.write(f"$ {step.command}\n{step.output}[{step.seconds:.1f} s]\n")
