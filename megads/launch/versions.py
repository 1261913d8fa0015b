"""Packages a run needs, and versions known to train wrongly, found without importing them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from megads.errors import DependencyError

NEEDED = ("torch", "deepspeed", "numpy", "safetensors", "tokenizers")


@dataclass(frozen=True)
class Wrong:
    """Versions of ``package`` from ``first`` up to, not including, ``fixed`` have a defect."""

    package: str
    first: str
    fixed: str
    defect: str


WRONG = (
    Wrong("deepspeed", "0.16.0", "0.18.3", "its pipeline sums micro-batch gradients instead of averaging (issue 7773)"),
    Wrong("deepspeed", "0.18.3", "0.19.3", "its pipeline divides gradients once per stage (issue 8152)"),
    Wrong("deepspeed", "0", "0.19.3", "ZeRO 1 and 2 race between streams (issue 8061)"),
)


def numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of ``version``: ``"2.13.0+cpu"`` gives (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def check_versions(needed: tuple[str, ...] = NEEDED) -> None:
    """Refuse to start when a package is missing or known to be wrong.

    Raises:
        DependencyError: names the package, the version found, and one that works.
    """
    for package in needed:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise DependencyError(
                f"{package} is not installed in this Python; pip install -c envs/constraints.txt {package}"
            ) from None
        for row in WRONG:
            if row.package == package and numbers(row.first) <= numbers(version) < numbers(row.fixed):
                raise DependencyError(
                    f"{package} {version}: {row.defect}; pip install -c envs/constraints.txt {package}"
                    f" (fixed in {row.fixed})"
                )
