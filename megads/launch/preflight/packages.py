"""Whether the packages that a run needs are there, in versions that train rightly. Nothing is imported for it.

The launcher's Python is the one that runs the ranks, so what it finds is what they find.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import ENGINE, choose
from megads.config.engine_choice import needed as only_by
from megads.config.optimizers import OPTIMIZERS, Needs
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sources.resolve import Resolved
from megads.errors import DependencyError, DeviceError
from megads.storage.resources import pip_install

NEEDED = ("torch", "numpy", "safetensors", "tokenizers")
"""What every run needs. ``deepspeed`` is needed where it is the engine."""


@dataclass(frozen=True)
class Wrong:
    """Versions of ``package`` from ``first`` up to, not including, ``fixed`` have a defect."""

    package: str
    first: str
    fixed: str
    defect: str
    concerns: Callable[[RunConfig], bool]  # whether a run meets the defect
    instead: str = ""  # a setting with which these versions are right


# Pipelines are not in this list: 0.16.0 to 0.18.2 sum micro-batch gradients where they should
# average them (issue 7773), 0.18.3 to 0.19.2 divide them once per stage (issue 8152), and
# megads.engine.deepspeed.stage scales them itself. Measured equal to one rank on 0.16.9, 0.18.5, 0.19.2 and 0.19.8.
WRONG = (
    Wrong("deepspeed", "0", "0.16.0", "it is older than every tested version", lambda run: True),
    Wrong(
        "deepspeed",
        "0",
        "0.19.3",
        # Measured on 0.16.9, 0.18.5 and 0.19.2; in fp16 the first two also average gradients wrongly over DP ranks.
        "with ZeRO 1 to 3, and so in half precision, it steps with gradients that are not finite (issue 8035), "
        "and its reductions race between streams (issue 8061)",
        lambda run: effective_zero_stage(run) > 0,
        instead="ZERO_STAGE=0 DTYPE=fp32",
    ),
)


def numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of ``version``: ``"2.13.0+cpu"`` gives (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def packages_of(run: RunConfig) -> tuple[str, ...]:
    """Return the packages that a derived ``run`` needs."""
    asked = {"deepspeed": choose(run, 0).kind == "deepspeed", "liger-kernel": run.engine.kernels == "liger"}
    return (*NEEDED, *(name for name, is_asked in asked.items() if is_asked))


def settle_engine(resolved: Resolved, version: Callable[[str], str | None] | None = None) -> Resolved:
    """Return settings whose engine is installed: with ``ENGINE=auto`` and without DeepSpeed the native one.

    Settings that only DeepSpeed follows are kept; :func:`check_versions` then names what is missing.
    """
    run = resolved.run
    in_image = bool(run.launch.container)
    is_there = not in_image and (version or version_of)("deepspeed") is not None
    if run.engine.kind != "auto" or choose(run, 0).kind == "native" or is_there or only_by(run, "deepspeed"):
        return resolved
    settled = run.model_copy(update={"engine": run.engine.model_copy(update={"kind": "native"})})
    if in_image:
        return Resolved(
            settled, {**resolved.origins, ENGINE: Origin("derived", "ranks in a container")}, resolved.notes
        )
    why = "deepspeed is not installed"
    return Resolved(
        settled,
        {**resolved.origins, ENGINE: Origin("derived", why)},
        (*resolved.notes, f"ENGINE=native, since {why} in this Python"),
    )


def check_versions(run: RunConfig, needed: tuple[str, ...] | None = None) -> None:
    """Refuse to start when a package is missing or known to train ``run`` wrongly.

    Args:
        needed: None: what ``run`` needs.

    Raises:
        DependencyError: names the package, the version found, and one that works.
    """
    if run.launch.container:
        return  # ranks have the image's, which report what they lack
    for package in needed or packages_of(run):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise DependencyError(
                f"{package} is not installed in this Python; {pip_install(package)}{_without(package, run)}"
            ) from None
        for row in WRONG:
            known = row.package == package and numbers(row.first) <= numbers(version) < numbers(row.fixed)
            if known and row.concerns(run):
                instead = f", or use {row.instead}" if row.instead else ""
                raise DependencyError(
                    f"{package} {version}: {row.defect}; {pip_install(package)} (right from {row.fixed} on){instead}"
                )


def _without(package: str, run: RunConfig) -> str:
    """Return what a run needs to change so that it does not need ``package``."""
    if package == "liger-kernel":
        return ", or use KERNELS=compiled"
    if package != "deepspeed":
        return ""
    asked = only_by(run, "deepspeed")
    return f", or drop {asked}, which ENGINE=native does not do" if asked else ", or use ENGINE=native"


def version_of(module: str) -> str | None:
    """Return the version of an installed ``module``, empty where it says none; None: it is not there."""
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
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
        device: "nvidia", "amd", "intel" or "cpu".

    Raises:
        DeviceError: the device is not one of its.
        DependencyError: a package or an op is missing, or a package is too old.
    """
    row, given = OPTIMIZERS[name], f"OPT={name}"
    # What comes closest, or what runs everywhere without a further package.
    other = row.instead if device in OPTIMIZERS[row.instead].devices else "adamw"
    instead = f"or use OPT={other}"
    if device not in row.devices:
        raise DeviceError(f"{given} runs on {' and '.join(row.devices)} devices, not on {device}; use OPT={other}")
    for need in row.needs:
        found = version(need.module)
        if found is None:
            raise DependencyError(f"{given} needs {need.module}, which is not installed: {need.install}, {instead}")
        if is_older(found, need):
            upgrade = need.install.replace("pip install ", "pip install -U ", 1)
            raise DependencyError(
                f"{given} needs {need.module} {need.version} or newer, not {found}: {upgrade}, {instead}"
            )
    if row.op and not built(row.op):
        raise DependencyError(
            f"{given} needs DeepSpeed's op {row.op}, with which the installed DeepSpeed was not built: "
            f"DS_BUILD_{row.op.upper()}=1 pip install --no-build-isolation --no-binary deepspeed "
            f"--force-reinstall --no-deps deepspeed, {instead}"
        )


def is_older(found: str, need: Needs) -> bool:
    """Return whether the version ``found`` is before the one that is needed; an unknown one is not."""
    return bool(need.version) and bool(found) and numbers(found) < numbers(need.version)
