"""Which container this process is in, told by what runtimes leave in the environment of what they start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NAME = "MEGADS_CONTAINER"
"""Set for ranks that the launcher starts in a container: its runtime and, after a blank, its image."""

_MARKS = (
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
    ("SHIFTER_RUNTIME", "shifter"),
    ("CH_RUNNING", "charliecloud"),
    ("container", ""),  # podman and systemd say which they are
)
_IMAGES = {"apptainer": "APPTAINER_CONTAINER", "singularity": "SINGULARITY_CONTAINER", "shifter": "SHIFTER_IMAGE"}


@dataclass(frozen=True)
class Inside:
    """The container that a process is in."""

    runtime: str
    image: str = ""  # empty: not known

    def __str__(self) -> str:
        return f"{self.runtime} {self.image}".rstrip()


def container_of(env: Mapping[str, str]) -> Inside | None:
    """Return the container that a process with the environment ``env`` is in, None outside of any."""
    if given := env.get(NAME, ""):
        runtime, _, image = given.partition(" ")
        return Inside(runtime, image)
    for mark, runtime in _MARKS:
        if value := env.get(mark, ""):
            name = runtime or value
            return Inside(name, env.get(_IMAGES.get(name, ""), ""))
    return None
