"""Packages a run needs, and versions known to train wrongly, found without importing them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.schema import RunConfig
from megads.errors import DependencyError

NEEDED = ("torch", "deepspeed", "numpy", "safetensors", "tokenizers")


@dataclass(frozen=True)
class Wrong:
    """Versions of ``package`` from ``first`` up to, not including, ``fixed`` have a defect."""

    package: str
    first: str
    fixed: str
    defect: str
    concerns: Callable[[RunConfig], bool]  # whether a run meets the defect
    instead: str = ""  # a setting with which these versions are right


def _shares_optimizer(run: RunConfig) -> bool:
    return effective_zero_stage(run) > 0


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
        _shares_optimizer,
        instead="ZERO_STAGE=0 DTYPE=fp32",
    ),
)


def numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of ``version``: ``"2.13.0+cpu"`` gives (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def check_versions(run: RunConfig, needed: tuple[str, ...] = NEEDED) -> None:
    """Refuse to start when a package is missing or known to train ``run`` wrongly.

    Args:
        run: the derived settings.
        needed: packages, by the names they are installed under.

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
            known = row.package == package and numbers(row.first) <= numbers(version) < numbers(row.fixed)
            if known and row.concerns(run):
                instead = f", or use {row.instead}" if row.instead else ""
                raise DependencyError(
                    f"{package} {version}: {row.defect}; pip install -c envs/constraints.txt {package}"
                    f" (right from {row.fixed} on){instead}"
                )
