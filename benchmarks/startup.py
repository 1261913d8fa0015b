"""How long a person waits before anything happens.

    python benchmarks/startup.py [--runs 7]

Whole-process wall times on this machine, the commands interleaved: bare Python and `import torch`
are the peers, `megads --help`, `megads config` and `bash train_7B.sh --dry-run` are ours. Prints
median, fastest and slowest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
COMMANDS = {
    "python -c pass": [PYTHON, "-c", "pass"],
    "python -c 'import torch'": [PYTHON, "-c", "import torch"],
    "megads --help": [PYTHON, "-m", "megads", "--help"],
    "megads config --preset 7B": [PYTHON, "-m", "megads", "config", "--preset", "7B"],
    "train_7B.sh --dry-run": ["bash", str(ROOT / "train_7B.sh"), "--dry-run"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MEGADS_PYTHON": PYTHON, "TP": "2", "NLAYERS": "10"}
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, words in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took[name].append(time.perf_counter() - started)
    for name, seconds in took.items():
        print(f"{name:28} {statistics.median(seconds):6.3f} s  ({min(seconds):.3f} .. {max(seconds):.3f})")


if __name__ == "__main__":
    main()
