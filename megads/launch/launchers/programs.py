"""Which program starts ranks, told by what it says of itself and not by its name."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from megads.errors import LaunchError

MARKS = {"openmpi": ("Open MPI", "OpenRTE", "PRRTE"), "mpich": ("HYDRA", "Intel(R) MPI Library"), "pals": ("PALS",)}
"""What ``--version`` of a kind of mpiexec holds."""

INTEL = "Intel(R) MPI Library"
_ONLY_IN_PALS_HELP = ("PALS", "--no-vni")

NAMES = {
    "openmpi": ("mpirun.openmpi", "mpirun", "mpiexec.openmpi", "mpiexec", "orterun", "prterun"),
    "mpich": ("mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun.mpich", "mpirun"),
    "pals": ("mpiexec", "mpirun", "aprun"),
}

MISSING = {
    "openmpi": "no Open MPI mpirun on PATH; install it (apt-get install openmpi-bin, conda install openmpi), "
    "load its module, or use LAUNCH_WITH=local (one host)",
    "mpich": "no MPICH mpiexec on PATH; install it (apt-get install mpich, conda install mpich), "
    "load its module, or use LAUNCH_WITH=local (one host)",
    "pals": "no mpiexec of PALS on PATH; load its module (cray-pals), or use LAUNCH_WITH=openmpi or mpich",
    "srun": "no srun on PATH; it comes with SLURM, elsewhere use LAUNCH_WITH=local (one host), openmpi or mpich",
    "flux": "no flux on PATH; it comes with Flux, elsewhere use LAUNCH_WITH=local (one host), openmpi or mpich",
    "jsrun": "no jsrun on PATH; it comes with IBM's JSM, elsewhere use LAUNCH_WITH=local (one host), openmpi or mpich",
}


def find_mpi(kind: str, env: Mapping[str, str]) -> str:
    """Return the first program on PATH that is an mpiexec of ``kind``, "" without one.

    The folder counts more than the name: a module that was loaded puts its own in front.
    """
    for folder in filter(None, env.get("PATH", "").split(os.pathsep)):
        for name in NAMES[kind]:
            program = shutil.which(name, path=folder)
            if program and kind_of(program, env) == kind:
                return program
    return ""


def on_path(name: str, env: Mapping[str, str]) -> str:
    """Return the program of the launcher ``name``, "" when it is not on PATH."""
    return find_mpi(name, env) if name in NAMES else shutil.which(name, path=env.get("PATH", "")) or ""


def require(name: str, env: Mapping[str, str]) -> str:
    """Return the program of the launcher ``name``.

    Raises:
        LaunchError: it is not on PATH.
    """
    found = on_path(name, env)
    if not found:
        raise LaunchError(f"LAUNCH_WITH={name}: {MISSING[name]}")
    return found


def kind_of(program: str, env: Mapping[str, str]) -> str:
    """Return whose mpiexec ``program`` is: a key of MARKS, or "" for any other program.

    Several MPIs install programs of the same name, so the name alone says nothing. The
    version of PALS need not hold its name; its folder or its help does.
    """
    text = version(program, env)
    for kind, marks in MARKS.items():
        if any(mark in text for mark in marks):
            return kind
    if "/pals/" in os.path.realpath(program):
        return "pals"
    answers = _output(program, "--help", _frozen(env)) if "mpiexec" in text or "aprun" in text else ""
    return "pals" if any(mark in answers for mark in _ONLY_IN_PALS_HELP) else ""


def version(program: str, env: Mapping[str, str]) -> str:
    """Return what ``program --version`` prints."""
    return _output(program, "--version", _frozen(env))


def _frozen(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(env.items()))


@functools.lru_cache(maxsize=64)
def _output(program: str, option: str, env: Sequence[tuple[str, str]]) -> str:
    try:
        done = subprocess.run(
            [program, option], env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
