"""Build the simulated device's library, once per source, torch and user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("device.cpp", "memory.h", "runtime.h", "streams.h")
OPTIONS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-w")


def missing() -> str:
    """Return why the library cannot be built here, "" if it can."""
    if compiler() or library().exists():
        return ""
    return "no C++ compiler for the simulated device (apt-get install g++)"


def compiler() -> str | None:
    """Return the C++ compiler; ``CXX`` names another one than ``g++``."""
    return shutil.which(os.environ.get("CXX") or "g++")


def library() -> Path:
    """Return where the library is, or will be: its name holds what it is made from."""
    import torch

    key = hashlib.sha256(f"{torch.__version__} {torch.__file__} {OPTIONS}".encode())
    for name in SOURCES:
        key.update((HERE / name).read_bytes())
    return cache_folder("megads-simgpu") / f"simgpu-{key.hexdigest()[:16]}.so"


def build() -> Path:
    """Return the library; whoever comes first builds it, and the others wait."""
    made = library()
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _compile(made)
    return made


def _compile(made: Path) -> None:
    import torch

    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    command = [compiler() or "g++", *OPTIONS, str(HERE / "device.cpp"), f"-I{include}"]
    command += [f"-I{include / 'torch/csrc/api/include'}", f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    unfinished = made.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the simulated device does not compile:\n{done.stderr[-4000:]}")
    unfinished.rename(made)


def cache_folder(name: str) -> Path:
    """Return a folder ``name`` of this user that outlives the run, or the folder of temporary files."""
    for folder in (os.environ.get("XDG_CACHE_HOME"), "~/.cache", tempfile.gettempdir()):
        path = Path(folder or "~/.cache").expanduser() / f"{name}-{os.getuid()}"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK) and path.stat().st_uid == os.getuid():
            return path
    raise RuntimeError(f"no folder for {name}")
