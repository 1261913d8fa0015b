"""What the number of hosts costs the launcher: ``python benchmarks/launcher.py``.

Times dry runs, whole processes, with lists of 1, 100 and 10,000 hosts: a PBS node file in
which every host stands four times, and a SLURM list in brackets. Nothing is started. The
target is under 2 s for 10,000 hosts, and about the time of one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = (1, 100, 10_000)
LIMIT_S = 2.0
FAKE_MPIEXEC = "#!/bin/sh\necho 'mpiexec version 1.4.0 (PALS)'\n"
COMMANDS = {
    "megads launch": ["launch", "--dry-run", "--", "true"],
    "megads train": ["train", "--dry-run", "--preset", "7B"],
}


def jobs(folder: Path, size: int) -> dict[str, dict[str, str]]:
    """Return the environment of a job with ``size`` hosts under each scheduler; the first host is this one."""
    first = socket.gethostname()
    nodes = folder / f"nodes-{size}"
    names = [first, *(f"x4{number:04d}c0s0b0n0" for number in range(1, size))]
    nodes.write_text("".join(f"{name}\n" * 4 for name in names))
    listed = first if size == 1 else f"{first},nid[{1:05d}-{size - 1:05d}]"
    return {
        "PBS": {"PBS_JOBID": "1", "PBS_NODEFILE": str(nodes)},
        "SLURM": {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": listed, "SLURM_JOB_CPUS_PER_NODE": f"64(x{size})"},
    }


def seconds(words: list[str], env: dict[str, str], folder: Path) -> float:
    """Return how long a command takes, the better of two."""
    best = float("inf")
    for _ in range(2):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "megads", *words], env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True
        )
        best = min(best, time.perf_counter() - begin)
        if done.returncode:
            sys.exit(done.stderr.decode())
    return best


def main() -> int:
    """Print a table; return 1 if a dry run with the most hosts takes too long."""
    slow = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in ("mpiexec", "srun"):
            (folder / program).write_text(FAKE_MPIEXEC)
            (folder / program).chmod(0o755)
        kept = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": name, "PYTHONPATH": str(ROOT)}
        print(f"{'command':16} {'job':6} " + " ".join(f"{size:>8} hosts" for size in SIZES))
        for title, words in COMMANDS.items():
            for scheduler in ("PBS", "SLURM"):
                cells = []
                for size in SIZES:
                    env = kept | {"MACHINE": "cpu", "NGPU_PER_HOST": "4"} | jobs(folder, size)[scheduler]
                    cells.append(seconds(words, env, folder))
                slow |= cells[-1] > LIMIT_S
                print(f"{title:16} {scheduler:6} " + " ".join(f"{cell:>12.2f} s" for cell in cells))
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
