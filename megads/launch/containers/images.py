"""What an image is, told by its name: a file, a folder, or a name that a runtime or a registry knows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from megads.errors import LaunchError

SIF = (".sif", ".simg", ".img")
SQUASH = (".sqsh", ".sqfs", ".squashfs")


@dataclass(frozen=True)
class Image:
    """An image as it was given."""

    name: str  # absolute where it is a path
    kind: str  # "sif", "squash", "folder", "uri" or "name"

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        """What it is, in words."""
        words = {
            "sif": "a SIF file",
            "squash": "a squashfs file",
            "folder": "a folder",
            "uri": "an image address",
        }
        return words.get(self.kind, "an image name")


def image_of(given: str, cwd: Path) -> Image:
    """Return what ``given`` means to a process in ``cwd``.

    Raises:
        LaunchError: it is a path, and there is no image.
    """
    if "://" in given:
        return Image(given, "uri")
    path = Path(cwd, os.path.expanduser(given))
    looks_like_path = given.startswith(("/", "./", "../", "~")) or given.endswith((*SIF, *SQUASH))
    if "#" in given or not (looks_like_path or path.exists()):
        return Image(given, "name")
    if not path.exists():
        raise LaunchError(
            f"CONTAINER={given}: not found; build it first (docs/containers.md), or pass the name of an image that "
            "the runtime or a registry knows"
        )
    name = os.path.abspath(path)
    if path.is_dir():
        return Image(name, "folder")
    if path.suffix in SIF:
        return Image(name, "sif")
    if path.suffix in SQUASH:
        return Image(name, "squash")
    raise LaunchError(
        f"CONTAINER={given}: not an image that a runtime starts; use a {SIF[0]} file (apptainer), a {SQUASH[0]} file "
        "(pyxis, charliecloud), a folder (apptainer, charliecloud) or a name (podman, docker, pyxis, shifter)"
    )
