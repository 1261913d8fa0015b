"""What a process in a container finds: every line, and what to do where something is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from megads.doctor import container
from megads.doctor.container import (
    Finding,
    Place,
    check_container,
    check_files,
    check_inside,
    check_libraries,
    check_python,
    check_torch,
    found_libraries,
)

ROOT = Path(__file__).parents[2]
INSIDE = {"MEGADS_CONTAINER": "apptainer /i/llm.sif", "MEGADS_DEVICE": "cpu", "MACHINE": "cpu"}


def place(tmp_path: Path, **env: str) -> Place:
    for name in ("etc", "dev/shm", "runs"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Debian 12"\n')
    return Place({**INSIDE, **env}, tmp_path / "runs", ROOT, top=tmp_path)


def by_name(findings) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_all_is_well(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "SMALLEST_SHM", 0)
    lines: list[str] = []
    env = {**os.environ, **INSIDE, "MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "2", "MEGADS_LOCAL_RANK": "0"}
    assert check_inside(env, tmp_path / "runs", ROOT, lines.append) == 0
    names = ["launcher", "container", "python", "megads", "torch", "device", "backend"]
    names += ["mpi", "pmi", "fabric", "folder", "shm"]
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in names]
    assert "rank 0 of 2" in lines[0]
    assert lines[1].split(None, 2)[2].startswith("apptainer, image /i/llm.sif, ")
    assert not (tmp_path / "runs").exists()  # nothing is left behind


def test_ranks_after_the_first_say_what_is_wrong_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "SMALLEST_SHM", 1 << 60)
    lines: list[str] = []
    env = {**INSIDE, "MEGADS_RANK": "1", "MEGADS_WORLD_SIZE": "2", "MEGADS_LOCAL_RANK": "1"}
    assert check_inside(env, tmp_path, ROOT, lines.append) == 1
    (line,) = lines
    assert line.startswith("[rank 1 host ")
    assert "--ipc=host" in line


def test_a_launcher_whose_numbers_did_not_come(tmp_path):
    lines: list[str] = []
    assert check_inside({**INSIDE, "MEGADS_NUM_RANKS": "4"}, tmp_path, ROOT, lines.append) == 1
    assert lines[0].startswith("FAIL launcher  4 ranks were started (MEGADS_NUM_RANKS), but no variable says which")
    assert lines[0].endswith("podman: --env=SLURM_* --env=PMI*)")


def test_outside_of_a_container(tmp_path):
    (found,) = check_container(Place({}, tmp_path, ROOT, top=tmp_path))
    assert found.line().startswith("FAIL container none: this process is outside; call it inside: megads launch")
    (tmp_path / ".dockerenv").touch()
    (found,) = check_container(Place({}, tmp_path, ROOT, top=tmp_path))
    assert (found.text, found.cure) == ("docker, image not known, system not known", "")


def test_an_old_python(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert "CONTAINER_PYTHON" in by_name(check_python(place(tmp_path)))["python"].cure


def test_no_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = check_torch(place(tmp_path))
    assert found.name == "torch"
    assert "install torch in the image" in found.cure


@pytest.mark.parametrize(
    ("files", "text", "cure"),
    [({}, "nvidia: none in /dev", "--nv"), ({"nvidia": 4}, "nvidia: 4 in /dev, and torch sees none", "--nv")],
)
def test_devices_that_the_machine_has_and_torch_does_not_see(tmp_path, monkeypatch, files, text, cure):
    monkeypatch.setattr(container, "visible_accelerators", lambda env: files)
    found = by_name(check_torch(place(tmp_path, MEGADS_DEVICE="", MACHINE="polaris")))
    assert found["device"].text == text
    assert cure in found["device"].cure
    assert found["backend"].cure == "use an image whose torch was built with nccl"


def test_a_fabric_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    here = place(tmp_path, LD_LIBRARY_PATH=str(tmp_path / "lib"))
    found = by_name(check_libraries(here))
    assert found["fabric"].text == "0 cards in /dev, no libfabric"
    assert not any(finding.cure for finding in found.values())
    (tmp_path / "dev/cxi0").touch()
    (tmp_path / "dev/infiniband").mkdir()
    (tmp_path / "dev/infiniband/uverbs0").touch()
    found = by_name(check_libraries(here))
    assert found["fabric"].text == "2 cards in /dev, no libfabric"
    assert found["fabric"].cure.startswith("bind the host's libfabric and libibverbs and name its folder")
    (tmp_path / "lib").mkdir()
    for name in ("libfabric.so.1", "libibverbs.so.1", "libnccl-net.so", "libmpi.so.12"):
        (tmp_path / "lib" / name).touch()
    found = by_name(check_libraries(here))
    assert found["fabric"].cure == ""
    assert found["fabric"].text.endswith(f"{tmp_path}/lib/libnccl-net.so")
    assert found["mpi"].text == f"{tmp_path}/lib/libmpi.so.12"


def test_libraries_of_the_system(monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", {"mpi": "libmpi.so.40"}.get)
    assert found_libraries(("mpi", "pmix"), {}) == {"mpi": "libmpi.so.40"}


def test_a_folder_that_is_not_bound(tmp_path, monkeypatch):
    def refuse(dir: Path):
        raise OSError(30, "Read-only file system")

    here = place(tmp_path)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    found = by_name(check_files(here))["folder"]
    assert found.line().endswith(f"runs: Read-only file system; bind it: CONTAINER_BINDS={tmp_path}/runs")


def test_little_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(64 << 20, 0, 0))
    found = by_name(check_files(place(tmp_path)))["shm"]
    assert found.text == "64 MiB in /dev/shm"
    assert "--ipc=host" in found.cure
