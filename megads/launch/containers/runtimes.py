"""The runtimes that start containers: each is a row of data and a function that builds its words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from megads.launch.containers.binds import Bind
from megads.launch.launchers.call import rank_words


@dataclass(frozen=True)
class Enclosure:
    """Everything that the words of a runtime depend on."""

    program: str
    image: str
    binds: Sequence[Bind]
    cwd: str
    device: str  # "nvidia", "amd", "intel" or "cpu"
    args: tuple[str, ...]  # the machine's and the user's own, last
    names: Sequence[str] = ()  # of the launcher's variables, which hold the rank
    given: Sequence[str] = ()  # of the other variables that are to reach ranks


@dataclass(frozen=True)
class Runtime:
    """One way to start a container.

    ``words`` come before the command of a rank; those of pyxis are options of srun. ``prefix`` begins the names of
    variables that the runtime sets inside, over the image's own. ``new_process``: what the image runs is no
    descendant of this process in all respects, so a signal that is ignored here is not there.
    """

    name: str  # in CONTAINER_RUNTIME
    program: str
    kinds: tuple[str, ...]  # of images, see megads.launch.containers.images
    words: Callable[[Enclosure], tuple[str, ...]]
    prefix: str = ""
    new_process: bool = False
    of_srun: bool = False
    one_host: bool = False  # nothing of a job reaches its daemon
    asks: tuple[str, ...] = ()  # words that succeed when this host has the image that follows


def apptainer(call: Enclosure) -> tuple[str, ...]:
    """Return the words of Apptainer and Singularity, which hand on the environment and mount /dev as it is."""
    device = {"nvidia": ("--nv",), "amd": ("--rocm",)}.get(call.device, ())
    binds = ",".join(bind.words(both=False) for bind in call.binds)
    return (call.program, "exec", *device, f"--bind={binds}", f"--pwd={call.cwd}", *call.args, call.image)


def pyxis(call: Enclosure) -> tuple[str, ...]:
    """Return srun's options of the plugin pyxis, by which enroot starts the container.

    ``--container-env`` names what takes precedence over the image's own variables.
    """
    mounts = ",".join(bind.words(both=True) for bind in call.binds)
    return (
        f"--container-image={call.image}",
        f"--container-mounts={mounts}",
        f"--container-workdir={call.cwd}",
        f"--container-env={','.join(call.given)}",
        *call.args,
    )


_SHARED = ("--rm", "--pull=never", "--network=host", "--ipc=host", "--pid=host")
_OF_LAUNCHERS = ("FLUX_*", "JSM_*", "MPI_*", "OMPI_*", "PALS_*", "PMI*", "SLURM_*")


def podman(call: Enclosure) -> tuple[str, ...]:
    """Return the words of Podman: of namespaces only those of files and users are its own."""
    if call.device == "nvidia":
        device: tuple[str, ...] = ("--device=nvidia.com/gpu=all",)
    else:
        device = _devices(call, "--group-add=keep-groups")
    user = () if os.geteuid() == 0 else ("--userns=keep-id",)
    return (
        *_podman(call, (*_SHARED, "--ulimit=host", "--security-opt=label=disable", *user, *device)),
        *call.args,
        call.image,
    )


def podman_hpc(call: Enclosure) -> tuple[str, ...]:
    """Return the words of podman-hpc, a Podman for clusters: ``--gpu`` and the like are its own."""
    device = ("--gpu",) if call.device == "nvidia" else _devices(call, "--group-add=keep-groups")
    return (*_podman(call, (*_SHARED, "--userns=keep-id", *device)), *call.args, call.image)


def _podman(call: Enclosure, options: Iterable[str]) -> tuple[str, ...]:
    names = [*_OF_LAUNCHERS, *(name for name in (*call.names, *call.given) if not _is_covered(name))]
    return (
        *(call.program, "run", *options, f"--workdir={call.cwd}"),
        *(f"--volume={bind.words(both=True)}" for bind in call.binds),
        *(f"--env={name}" for name in names),
    )


def _is_covered(name: str) -> bool:
    return any(name.startswith(pattern[:-1]) for pattern in _OF_LAUNCHERS)


def docker(call: Enclosure) -> tuple[str, ...]:
    """Return the words of Docker, as the user who calls it; its daemon knows nothing of a job."""
    device = ("--gpus=all",) if call.device == "nvidia" else _devices(call, "--group-add=video")
    return (
        *(call.program, "run", *_SHARED, "--ulimit=memlock=-1"),
        *(f"--user={os.getuid()}:{os.getgid()}", *device, f"--workdir={call.cwd}"),
        *(f"--volume={bind.words(both=True)}" for bind in call.binds),
        *(f"--env={name}" for name in (*call.names, *call.given)),
        *(*call.args, call.image),
    )


def _devices(call: Enclosure, group: str) -> tuple[str, ...]:
    """Return the devices of AMD and Intel, which are files, and the group that may open them."""
    files = {"amd": ("/dev/kfd", "/dev/dri"), "intel": ("/dev/dri",)}.get(call.device, ())
    return (*(f"--device={file}" for file in files), *((group,) if files else ()))


def shifter(call: Enclosure) -> tuple[str, ...]:
    """Return the words of Shifter, which mounts the site's file systems itself and nothing else."""
    return (call.program, f"--image={call.image}", f"--workdir={call.cwd}", *call.args, "--")


def charliecloud(call: Enclosure) -> tuple[str, ...]:
    """Return the words of Charliecloud, which hands on the environment; the host's libraries are not for the image."""
    return (
        *(call.program, f"--cd={call.cwd}", "--unset-env=LD_LIBRARY_PATH"),
        *(f"--bind={bind.words(both=True)}" for bind in call.binds),
        *(*call.args, call.image, "--"),
    )


RUNTIMES: Mapping[str, Runtime] = {
    row.name: row
    for row in (
        Runtime("apptainer", "apptainer", ("sif", "folder", "uri"), apptainer, "APPTAINERENV_"),
        Runtime("singularity", "singularity", ("sif", "folder", "uri"), apptainer, "SINGULARITYENV_"),
        Runtime("pyxis", "srun", ("squash", "name"), pyxis, of_srun=True),
        Runtime("podman-hpc", "podman-hpc", ("name",), podman_hpc, new_process=True),
        Runtime("podman", "podman", ("name",), podman, new_process=True, asks=("image", "exists")),
        Runtime("docker", "docker", ("name",), docker, new_process=True, one_host=True, asks=("image", "inspect")),
        Runtime("shifter", "shifter", ("name",), shifter),
        Runtime("charliecloud", "ch-run", ("folder", "squash"), charliecloud),
    )
}
"""Every runtime by its name; where several take an image, the first on PATH starts it."""


def enclosed(row: Runtime, words: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """Return ``command`` behind ``words``; inside it ignores SIGUSR1 until it listens, as outside."""
    return (*words, *(rank_words(command) if row.new_process else command))
