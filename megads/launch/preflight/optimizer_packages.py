"""Whether this host has what an optimizer needs, told before a rank finds out. Nothing is imported for it.

The launcher's Python is the one that runs the ranks, so what it finds is what they find.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from megads.config.optimizers import OPTIMIZERS, Needs, Optimizer
from megads.errors import DependencyError, DeviceError


def version_of(module: str) -> str | None:
    """Return the version of an installed ``module``, empty where it says none; None: it is not there."""
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return ""


def has_op(op: str) -> bool:
    """Return whether DeepSpeed was installed with one of its ops, as ``cpu_adam``."""
    found = importlib.util.find_spec("deepspeed")
    folders = found.submodule_search_locations if found is not None else None
    return any(any(Path(folder).glob(f"ops/*/{op}_op*.so")) for folder in folders or ())


def check_optimizer(
    name: str,
    device: str,
    version: Callable[[str], str | None] = version_of,
    built: Callable[[str], bool] = has_op,
) -> None:
    """Refuse an optimizer that this host cannot run.

    Args:
        name: value of ``OPT``.
        device: "nvidia", "amd", "intel" or "cpu".
        version: what is installed of a module.
        built: whether an op of DeepSpeed is there.

    Raises:
        DeviceError: the device is not one of its.
        DependencyError: a package or an op is missing, or a package is too old.
    """
    row = OPTIMIZERS[name]
    given = f"OPT={name}"
    if device not in row.devices:
        where = " and ".join(row.devices)
        raise DeviceError(f"{given} runs on {where} devices, not on {device}; use OPT={_instead(row, device)}")
    instead = f"or use OPT={_instead(row, device)}"
    for need in row.needs:
        found = version(need.module)
        if found is None:
            raise DependencyError(f"{given} needs {need.module}, which is not installed: {need.install}, {instead}")
        if is_older(found, need):
            raise DependencyError(
                f"{given} needs {need.module} {need.version} or newer, not {found}: {_upgrade(need)}, {instead}"
            )
    if row.op and not built(row.op):
        raise DependencyError(
            f"{given} needs DeepSpeed's op {row.op}, with which the installed DeepSpeed was not built: "
            f"DS_BUILD_{row.op.upper()}=1 pip install --no-build-isolation --no-binary deepspeed "
            f"--force-reinstall --no-deps deepspeed, {instead}"
        )


def is_older(found: str, need: Needs) -> bool:
    """Return whether the version ``found`` is before the one that is needed; an unknown one is not."""
    return bool(need.version) and bool(found) and _numbers(found) < _numbers(need.version)


def _instead(row: Optimizer, device: str) -> str:
    """Return what comes closest and runs on ``device`` without a further package if it cannot either."""
    other = OPTIMIZERS[row.instead]
    return row.instead if device in other.devices else "adamw"


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _upgrade(need: Needs) -> str:
    return need.install.replace("pip install ", "pip install -U ", 1)
