"""Schedulers that are scripts, and what they are asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from megads.launch.schedulers.allocation import Allocation

NOWHERE = Allocation("none", ("a",), 1)


NOW = 1_700_000_000.0


def answering(folder: Path, **answers: str) -> dict[str, str]:
    """Return an environment whose PATH has programs that note their arguments and answer."""
    for name, answer in answers.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/asked"\n{answer}\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []


def say(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


def left_of(find: Callable[[], float], seconds: float) -> bool:
    """Return whether the end that is found is ``seconds`` from a moment during the call."""
    before = time.time()
    end = find()
    return before + seconds <= end <= time.time() + seconds


CPU = {"MEGADS_DEVICE": "cpu"}


PBS = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": "{file}"}


SLURM = {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
