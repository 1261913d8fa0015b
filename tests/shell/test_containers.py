"""containers/: build.sh hands every builder what the recipes take, and says in one line what is wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
BUILDER = """#!/bin/sh
echo "${0##*/}" "$@" >>"$LOG"
for last; do :; done
case "$*" in *CONTEXT=*) last="$(echo "$*" | sed 's/.*CONTEXT=\\([^ ]*\\).*/\\1/')" ;; esac
(cd "$last" && find . -type f | sort) >>"$LOG"
"""
PYTHON = """#!/bin/sh
for word; do case "$before" in -w) touch "$word/megads-1-py3-none-any.whl" ;; esac; before="$word"; done
"""


def build(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    for name, text in (("podman", BUILDER), ("apptainer", BUILDER), ("python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    given = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(folder / "log"), "MEGADS_PYTHON": str(folder / "python")}
    return subprocess.run(
        ["bash", CONTAINERS / "build.sh", *words], env={**given, **env}, cwd=folder, capture_output=True, text=True
    )


def vendors() -> dict[str, list[str]]:
    rows = [line.split() for line in (CONTAINERS / "bases.txt").read_text().splitlines() if line[:1] != "#"]
    return {row[0]: row[1:] for row in rows}


CONTEXT = ["./envs/has_packages.py", "./envs/install.sh", "./megads-1-py3-none-any.whl", "./setup.cfg"]


@pytest.mark.parametrize("vendor", vendors())
def test_podman_gets_the_vendors_base(tmp_path, vendor):
    done = build(tmp_path, vendor)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"built megads:{vendor}; CONTAINER=megads:{vendor} megads train ...\n"
    line, *files = (tmp_path / "log").read_text().splitlines()
    base, torch = vendors()[vendor]
    assert f"--build-arg BASE={base} --build-arg TORCH={torch} " in line
    assert f"-t megads:{vendor} " in line
    assert files == CONTEXT


def test_apptainer_gets_the_same_and_more_words(tmp_path):
    done = build(tmp_path, "amd", "apptainer", "--fakeroot", BASE="mine.sif", BOOTSTRAP="localimage")
    assert done.returncode == 0, done.stderr
    line, *files = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("apptainer build --fakeroot --build-arg BOOTSTRAP=localimage --build-arg BASE=mine.sif ")
    assert line.endswith(f" megads-amd.sif {CONTAINERS}/megads.def")
    assert files == CONTEXT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no vendor '' in containers/bases.txt; use one of nvidia amd intel cpu"),
        (("arm",), "no vendor 'arm' in containers/bases.txt; use one of nvidia amd intel cpu"),
        (("cpu", "buildah"), "no builder 'buildah'; use podman, docker, podman-hpc, apptainer or singularity"),
        (("cpu", "singularity"), "singularity is not on PATH; install it or load its module, or name another builder"),
    ],
)
def test_what_cannot_be_built_is_one_line(tmp_path, words, said):
    done = build(tmp_path, *words)
    assert (done.returncode, done.stderr) == (2, f"containers/build.sh: {said}\n")
    assert not (tmp_path / "log").exists()


def test_both_recipes_do_the_same_inside():
    """Every argument that build.sh gives is declared, and both run install.sh with the wheel and TORCH."""
    script, definition = (CONTAINERS / "build.sh").read_text(), (CONTAINERS / "megads.def").read_text()
    recipe = (CONTAINERS / "Containerfile").read_text()
    podman = {*re.findall(r"--build-arg \"(\w+)=", script.split("*)")[-1])}
    assert podman == {*re.findall(r"^ARG (\w+)=", recipe, re.MULTILINE)}
    declared = {*re.findall(r"^    (\w+)=", definition.split("%arguments")[1].split("%files")[0], re.MULTILINE)}
    assert {*re.findall(r"--build-arg \"(\w+)=", script)} == declared | podman
    assert {*re.findall(r"{{ (\w+) }}", definition)} == declared
    for text, torch in ((recipe, '"${TORCH}"'), (definition, "{{ TORCH }}")):
        assert f"sh /tmp/megads/envs/install.sh /tmp/megads/*.whl {torch}" in text
        assert "PATH=/opt/megads/bin:" in text
