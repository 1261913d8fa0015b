"""What an image is, by its name and by what is there."""

from __future__ import annotations

import pytest

from megads.errors import LaunchError
from megads.launch.containers.images import image_of


@pytest.fixture
def folder(tmp_path):
    for name in ("llm.sif", "llm.sqsh", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "rootfs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("llm.sif", "sif"),
        ("./llm.sqsh", "squash"),
        ("rootfs", "folder"),
        ("docker://me/llm", "uri"),
        ("megads:cpu", "name"),
        ("nvcr.io#nvidia/pytorch:25.06-py3", "name"),
        ("nvcr.io/nvidia/pytorch:25.06-py3", "name"),
    ],
)
def test_kinds(folder, given, kind):
    image = image_of(given, folder)
    assert image.kind == kind
    # What is a path is one for every process, whatever folder it is in.
    assert image.name == (given if kind in ("uri", "name") else str(folder / given.removeprefix("./")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("none.sif", "CONTAINER=none.sif: not found; build it first"),
        ("./rootfs2", "CONTAINER=./rootfs2: not found"),
        ("notes.txt", "CONTAINER=notes.txt: not an image that a runtime starts; use a .sif file"),
    ],
)
def test_what_is_no_image_is_refused(folder, given, said):
    with pytest.raises(LaunchError, match=said.replace(".", r"\.")):
        image_of(given, folder)
