"""An sdist and wheels of this checkout, built once; and a wheel, installed beside the packages of this Python."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1700000000
"""SOURCE_DATE_EPOCH of the builds."""
STAMP = "0123456789"
"""The commit that the copy says it is, as an sdist does."""
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"


@dataclass(frozen=True)
class Built:
    """What was built of a copy of the files that git knows.

    Attributes:
        files: these, by name.
        sdist: the files of the archive by name, without its one folder.
        archive: that file.
        wheel: made of the copy.
        wheel_of_sdist: made of the archive, unpacked.
    """

    files: dict[str, bytes]
    sdist: dict[str, bytes]
    archive: Path
    wheel: Path
    wheel_of_sdist: Path


def build(what: str, source: Path, target: Path) -> Path:
    """Return what the backend makes of a folder: ``what`` is build_wheel or build_sdist; no package is installed."""
    target.mkdir()
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(target)],
        cwd=source,
        env=env | {"SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout + done.stderr
    return next(target.iterdir())


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    copy, files = folder / "copy", {}
    for name in listed:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
            files[name] = (copy / name).read_bytes()
    (copy / "megads/release/commit.txt").write_text(f"{STAMP}\n")
    (copy / "build/lib/megads").mkdir(parents=True)
    (copy / "build/lib/megads/gone.py").touch()  # as an earlier build leaves it
    sdist = build("build_sdist", copy, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked")
    tree = next((folder / "unpacked").iterdir())
    packed = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    wheels = [build("build_wheel", source, folder / f"wheel-of-{source.name}") for source in (copy, tree)]
    return Built(files, packed, sdist, *wheels)


@pytest.fixture(scope="session")
def installed(built, tmp_path_factory):
    """Give the ``megads`` command of an environment with the wheel, and all else as this Python has it."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    own = next(environment.glob("lib/python*/site-packages"))
    # A line of a .pth file adds a folder, but not what its own .pth files add: no editable copy.
    (own / "others.pth").write_text("".join(f"{folder}\n" for folder in site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "--disable-pip-version-check"]
    # Not what pip sees of the checkout, by whose version it would leave this one out.
    words = ["install", "-q", "--no-deps", "--no-index", "--no-compile", "--ignore-installed", str(built.wheel)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*pip, *words], env=env, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return environment / "bin/megads"
