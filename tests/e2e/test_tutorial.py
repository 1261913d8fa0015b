"""The first hour: every command of docs/tutorial.md, as it stands there, in one shell."""

import inspect
import os
import re
import sys
from pathlib import Path

import pytest

from tests.documents import Step, commands, walk
from tests.forks.popen import server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
ANSWER = str(inspect.getdoc(len)).split("\n\n")[0]


def _environment(folder: Path) -> dict[str, str]:
    """Return that of a reader on a laptop; commands are forked, but the server, which the shell ends."""
    programs = folder / "bin"
    programs.mkdir()
    client = f'"{sys.executable}" -I -S "{ROOT}/tests/forks/client.py" "{server().address}"'
    serve = f'[ "$1" = serve ] && exec "{sys.executable}" -m megads "$@"'
    python = f'exec "{sys.executable}" "$@"'
    for name, lines in (("megads", f'{serve}\nexec {client} "$@"'), ("python3", python)):
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    caches = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # matplotlib's list of fonts
    return {
        **kept,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_CACHE_HOME": caches,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MACHINE": "cpu",
    }


def test_it_needs_no_checkout_and_covers_the_hour():
    """Also for whoever installed a wheel; and each step is there."""
    lines = commands(PAGE)
    assert not [line for line in lines if re.search(r"megads\.sh|train_7B|launchers/|docs/|examples/", line)]
    called = {match[1] for line in lines if (match := re.search(r"\bmegads ([a-z][\w-]*)", line))}
    assert called >= {
        "data",
        "train",
        "runs",
        "plot",
        "checkpoint",
        "generate",
        "evaluate",
        "finetune",
        "serve",
        "plan",
    }


@pytest.mark.slow
def test_the_first_hour(tmp_path):
    (folder := tmp_path / "hour").mkdir()
    lines = commands(PAGE)
    plan = next(number for number, line in enumerate(lines) if line.startswith("megads plan "))
    walked = walk([*lines[:plan], "unset MACHINE", *lines[plan:]], folder, _environment(tmp_path), timeout_s=1100)
    steps = [step for step in walked if step.command in lines]
    assert len(steps) == len(lines)
    _trained(steps, folder)
    _used(steps)
    assert "#PBS -l select=16" in _output(steps, "--submit")
    settings = set(re.findall(r"\b[A-Z_]+=\d\S*", next(line for line in lines if "--submit" in line)))
    planned = {pair.replace("_", "") for pair in re.findall(r"\S+=\S+", _output(steps, "megads plan "))}
    assert {pair.replace("_", "") for pair in settings} <= planned, "the job has the layout of the plan"
    for picture in ("compared.png", "plan.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")


def _trained(steps: list[Step], folder: Path) -> None:
    assert _output(steps, "EXIT_INTERVAL=100").endswith("exit code 75\n")
    resumed = _output(steps, "TP=2 RUN_NAME=llama")
    for part in ("resuming from iteration 100", "TP 1 -> 2", "function loss", "150 of 150 iterations"):
        assert part in resumed
    assert re.search(r"^gpt +done +150/150 .*^llama +done +150/150 ", _output(steps, "megads runs"), re.M | re.S)
    assert "valid_loss/code" in (folder / "runs/blend/metrics.jsonl").read_text()
    first, blended = (_bits_per_byte(_output(steps, f"megads evaluate runs/{name}")) for name in ("llama", "blend"))
    assert blended < first - 0.1, "the blend has learnt from the code"


def _used(steps: list[Step]) -> None:
    exported, run = (_text(_output(steps, begin)) for begin in ("megads generate hf", "TP=2 megads generate"))
    assert exported == run
    assert exported.startswith("The for statement")
    assert _text(_output(steps, "megads generate runs/llama-chat")) == ANSWER
    assert _output(steps, "python3 ask.py").strip() == ANSWER


def _output(steps: list[Step], begin: str) -> str:
    """Return what the one command printed that begins with, or has, these words."""
    found = [step.output for step in steps if step.command.startswith(begin)]
    found = found or [step.output for step in steps if begin in step.command]
    (output,) = found
    return output


def _text(output: str) -> str:
    """Return what a command wrote besides its notes."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("megads: ")).strip()


def _bits_per_byte(output: str) -> float:
    found = re.search(r"([\d.]+) bits per byte|bits per byte\s+([\d.]+)", output)
    assert found, output
    return float(found[1] or found[2])
