"""Requests for jobs, and schedulers that are scripts."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from megads.cli import main
from megads.launch.request import TrainRequest
from megads.launch.submit.job_script import JobOptions, Place, find_place
from megads.launch.submit.training import (
    prepare_submission,
)

ROOT = Path(__file__).parents[3]


def ask(machine: str = "polaris", *pairs: str, preset: str = "7B", flags=(), **env: object) -> TrainRequest:
    given = {"MACHINE": machine, "PATH": "/none", **{name: str(value) for name, value in env.items()}}
    words = {"preset": preset, "pairs": pairs, "env": given, "hostname": "here", "root": ROOT, "flags": flags}
    return TrainRequest(**words, python="/venv/bin/python")


def prepared(asked: TrainRequest, wish: JobOptions | None = None, cwd: Path = Path("/my dir")):
    return prepare_submission(asked, wish or JobOptions(nodes=4, account="X"), cwd)


def directives(text: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(("#PBS", "#SBATCH"))]


def place(machine: str) -> Place:
    return find_place(machine, ROOT, {})


def fake(folder: Path, name: str, code: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/bash\n{code}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def cli(*words: object, **env: str):
    merged = {name: "" for name in ("TP", "NHOSTS", "WALLTIME")} | {"MACHINE": "polaris", "PATH": "/none", **env}
    return CliRunner().invoke(main, [str(word) for word in words], env=merged)
