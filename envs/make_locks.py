"""Write envs/locks/*.txt: the tested versions of everything that megads runs with, with hashes.

Run after a change of setup.cfg or envs/constraints.txt, where the package index can be reached:

    pip install -r envs/release-tools.txt && python envs/make_locks.py

common.txt has all packages but torch and what is built for a vendor's devices. The other files name it, so that each
of them is what one vendor needs. The index that pip asks by default has NVIDIA's build of torch only: in the files of
other vendors torch is a line to read, since its hashes are those of another index.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "envs/locks"
NOT_LOCKED = ("apex", "docs", "intel", "test")
"""Extras: what builds apex, torch 2.8 of Intel's CPUs, and what no run needs."""
OF_NVIDIA = re.compile(r"torch|triton|cuda-[\w-]+|nvidia-(?!ml-py)[\w-]+|liger-kernel")
"""Packages that are built for NVIDIA's devices, or need what is."""
BACKENDS = {"cpu": "cpu", "amd": "rocm7.2", "intel": "xpu"}
"""Vendor -> what uv's --torch-backend calls its build of torch."""
MADE = "# Written by envs/make_locks.py; do not edit.\n"


def extras() -> list[str]:
    """Return the extras that are locked."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return [extra for extra in config["options.extras_require"] if extra not in NOT_LOCKED]


def compiled() -> str:
    """Return the locked packages for every Python and platform, as uv finds them."""
    words = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10"]
    words += ["--generate-hashes", "--no-header", "--no-annotate", "-c", "envs/constraints.txt", "setup.cfg"]
    words += [f"--extra={extra}" for extra in extras()]
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def blocks(text: str) -> list[str]:
    """Return one text for each package: its line, and those of its hashes."""
    return re.findall(r"^\w.*\n(?:[ \t]+.*\n)*", text, re.MULTILINE)


def files(packages: Iterable[str]) -> dict[str, str]:
    """Return the texts of the files by name."""
    common, nvidia, torch = [], [], ""
    for block in packages:
        name = re.match(r"[\w.-]+", block)[0]
        (nvidia if OF_NVIDIA.fullmatch(name) else common).append(block)
        if name == "torch":
            torch = block.split()[0]
    made = {"common.txt": MADE + "".join(common), "nvidia.txt": f"{MADE}-r common.txt\n{''.join(nvidia)}"}
    for vendor, backend in BACKENDS.items():
        why = (
            f"# {torch} comes from another index, so without a hash: uv pip install --torch-backend={backend} {torch}\n"
        )
        made[f"{vendor}.txt"] = f"{MADE}{why}-r common.txt\n"
    return made


if __name__ == "__main__":
    LOCKS.mkdir(exist_ok=True)
    for file, text in files(blocks(compiled())).items():
        (LOCKS / file).write_text(text, encoding="ascii")
        sys.stdout.write(f"envs/locks/{file}: {len(blocks(text))} packages\n")
