"""From CONTAINER to the command of a rank: which runtime, checks that name what would work, and the words."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from megads.cluster.container import NAME, container_of
from megads.cluster.machine import visible_accelerators
from megads.cluster.ranks import EXPLICIT
from megads.config.machine_facts import ContainerFacts, Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.device.names import wanted_device
from megads.errors import LaunchError
from megads.launch.containers.binds import binds_of_run, parse_binds
from megads.launch.containers.images import Image, image_of
from megads.launch.containers.runtimes import RUNTIMES, Enclosure, Runtime, enclosed
from megads.launch.launchers.call import Call, Launcher

_AGENTS = ("torchrun", "deepspeed")
_ROOT = Path(__file__).resolve().parents[3]

# What describes this host's programs, and would mislead those of the image.
_NOT_HANDED_ON = re.compile(
    r"PATH|LD_\w+|PYTHON\w*|VIRTUAL_ENV|CONDA_\w+|MEGADS_(ACTIVE|PYTHON|FOUND_PYTHON|COMMAND|SITE_PYTHON)|HOST|HOSTNAME|"
    r"PWD|OLDPWD|SHLVL|_|TERM\w*|SHELL|DISPLAY|XAUTHORITY|SSH_\w+|LMOD_\w+|MODULE\w*|LOADEDMODULES|_LMFILES_|BASH_\w+|"
    r"MANPATH|INFOPATH|PKG_CONFIG_PATH|CMAKE_\w+|APPTAINER\w*|SINGULARITY\w*|CONTAINER\w*"
)
_A_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Chosen:
    """An image and what starts it."""

    image: Image
    runtime: Runtime


def rank_python(launch: LaunchConfig, python: str) -> str:
    """Return the Python of ranks: that of the image, ``python`` without one."""
    return launch.container_python if launch.container else python


def check_container(
    launch: LaunchConfig, env: Mapping[str, str], cwd: Path | None = None, *, started: str = ""
) -> None:
    """Refuse a container that cannot hold these ranks, as far as settings and files show it.

    Args:
        cwd: where relative paths begin; None: the working folder, which may be gone where no container is asked for.
        started: the launcher, if it has started the ranks already.

    Raises:
        LaunchError: one line with what would work.
    """
    if not launch.container:
        return
    given = f"CONTAINER={launch.container}"
    if (around := container_of(env)) is not None:
        raise LaunchError(
            f"{given}: this process is in a container already ({around}), and starts none inside; unset CONTAINER, or "
            "call megads outside"
        )
    if started:
        raise LaunchError(
            f"{given}: {started} started these ranks outside of it; call `megads train` alone, which starts them "
            f"inside, or unset CONTAINER and let {started} start the runtime, e.g. apptainer exec IMAGE megads train"
        )
    if launch.stage_env:
        raise LaunchError(
            f"{given} with STAGE_ENV=1: ranks in a container use the image's Python, not a staged one; drop one of both"
        )
    if launch.launch_with in _AGENTS:
        raise LaunchError(
            f"{given}: the agents of LAUNCH_WITH={launch.launch_with} start ranks outside of a container; use "
            "LAUNCH_WITH=auto"
        )
    if launch.container_runtime == "pyxis" and launch.launch_with not in ("auto", "srun"):
        raise LaunchError(
            f"{given}: CONTAINER_RUNTIME=pyxis is a plugin of srun, not of LAUNCH_WITH={launch.launch_with}; use "
            "LAUNCH_WITH=srun, or CONTAINER_RUNTIME=apptainer"
        )
    image = image_of(launch.container, cwd or Path.cwd())
    if launch.container_runtime != "auto":
        _require_kind(RUNTIMES[launch.container_runtime], image)
    parse_binds(launch.container_binds)


def choose(launch: LaunchConfig, facts: Facts, env: Mapping[str, str], cwd: Path) -> Chosen:
    """Return the image of ``launch`` and the runtime: the one asked for, the machine's, else the first on PATH.

    Raises:
        LaunchError: there is no image, no runtime that starts it, or it is not on PATH.
    """
    found = _choose(launch, facts, env, cwd)
    if found.runtime.asks and not _has_image(found, env):
        name = found.runtime.program
        raise LaunchError(
            f"CONTAINER={found.image}: {name} on this host has no such image; build it (containers/build.sh), or get "
            f"it before the run: {name} pull {found.image}"
        )
    return found


def _has_image(chosen: Chosen, env: Mapping[str, str]) -> bool:
    program = shutil.which(chosen.runtime.program, path=env.get("PATH", "")) or chosen.runtime.program
    words = [program, *chosen.runtime.asks, chosen.image.name]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=dict(env), timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return True  # it says so itself when it starts
    return done.returncode == 0


def _choose(launch: LaunchConfig, facts: Facts, env: Mapping[str, str], cwd: Path) -> Chosen:
    image = image_of(launch.container, cwd)
    if launch.container_runtime != "auto":
        row = RUNTIMES[launch.container_runtime]
        _require_kind(row, image)
        return Chosen(image, _require(row, env))
    own = RUNTIMES.get(facts.container.runtime)
    if own is not None and image.kind in own.kinds:
        return Chosen(image, _require(own, env))
    fitting = [row for row in RUNTIMES.values() if image.kind in row.kinds]
    found = next((row for row in fitting if _is_here(row, env)), None)
    if found is None:
        names = ", ".join("srun with pyxis" if row.of_srun else row.program for row in fitting)
        raise LaunchError(
            f"CONTAINER={launch.container}: nothing on PATH starts {image.title}; looked for {names}; load the module "
            "of one of them, or set CONTAINER_RUNTIME (docs/containers.md)"
        )
    return Chosen(image, found)


def _require_kind(row: Runtime, image: Image) -> None:
    if image.kind not in row.kinds:
        others = ", ".join(other.name for other in RUNTIMES.values() if image.kind in other.kinds)
        raise LaunchError(
            f"CONTAINER={image}: CONTAINER_RUNTIME={row.name} does not start {image.title}; use one of {others}"
        )


def _require(row: Runtime, env: Mapping[str, str]) -> Runtime:
    if _is_here(row, env):
        return row
    if row.of_srun:
        why = "srun here has no option --container-image, which the plugin pyxis adds (or there is no srun)"
    else:
        why = f"{row.program} is not on PATH of this host; load its module"
    raise LaunchError(f"CONTAINER_RUNTIME={row.name}: {why}, or use another CONTAINER_RUNTIME (docs/containers.md)")


def _is_here(row: Runtime, env: Mapping[str, str]) -> bool:
    program = shutil.which(row.program, path=env.get("PATH", ""))
    return bool(program) and (not row.of_srun or _has_pyxis(str(program)))


@functools.lru_cache(maxsize=8)
def _has_pyxis(srun: str) -> bool:
    try:
        done = subprocess.run([srun, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return False
    return "--container-image" in done.stdout + done.stderr


def enclose(call: Call, run: RunConfig, launcher: Launcher, chosen: Chosen) -> Call:
    """Return ``call`` whose ranks, which ``launcher`` starts, run in the container.

    Raises:
        LaunchError: the launcher cannot start it, or a path cannot be bound.
    """
    row, facts, cwd = chosen.runtime, call.facts, Path.cwd()
    site = facts.container if facts.container.runtime == row.name else ContainerFacts()
    if launcher.name in _AGENTS or (row.of_srun and launcher.name != "srun"):
        use = "LAUNCH_WITH=srun" if row.of_srun else "LAUNCH_WITH=auto"
        raise LaunchError(
            f"CONTAINER={chosen.image}: LAUNCH_WITH={launcher.name} does not start ranks in {row.name}; use {use}"
        )
    if row.one_host and not call.local:
        raise LaunchError(
            f"CONTAINER_RUNTIME={row.name} starts ranks of this host alone, and the run is on "
            f"{len(call.allocation.hosts)} hosts; use apptainer, podman or pyxis"
        )
    added = {**call.added, **site.environment, **_inside(chosen)}
    if row.prefix:  # over what the image sets
        more = {name: value for name, value in added.items() if not name.startswith(("MEGADS_", "MASTER_"))}
        added |= {f"{row.prefix}{name}": value for name, value in more.items()}
    handed = {name for name in call.env if _A_NAME.fullmatch(name) and not _NOT_HANDED_ON.fullmatch(name)}
    own = {name for name in added if not row.prefix or not name.startswith(row.prefix)}
    # pyxis hands on all variables anyway: these are what is to take precedence over the image's.
    names = own if row.of_srun else own | handed
    numbers = (*dict.fromkeys((*launcher.numbers.split(), *EXPLICIT)),)
    words = row.words(
        Enclosure(
            row.program,
            str(chosen.image),
            (
                *binds_of_run(run, call.env, cwd, _ROOT, [call.folder.absolute()]),
                *parse_binds(" ".join(site.binds), "facts: container: binds"),
                *parse_binds(run.launch.container_binds),
            ),
            str(cwd),
            wanted_device(call.env) or facts.device or [*visible_accelerators(call.env), "cpu"][0],
            (*site.args, *shlex.split(run.launch.container_args)),
            numbers,
            sorted(names - {*numbers}),
        )
    )
    if row.of_srun:
        return replace(
            call,
            added=added,
            facts=facts.model_copy(update={"starter_args": (*facts.starter_args, *words)}),
        )
    return replace(call, added=added, command=enclosed(row, words, call.command))


def _inside(chosen: Chosen) -> dict[str, str]:
    """Return the variables that ranks get because they are in a container."""
    # Of this host's PYTHONPATH nothing but the checkout is for the image's Python.
    checkout = "" if _ROOT.name in ("site-packages", "dist-packages") else str(_ROOT)
    return {NAME: f"{chosen.runtime.name} {chosen.image}", "PYTHONNOUSERSITE": "1", "PYTHONPATH": checkout}
