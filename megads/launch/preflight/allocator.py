"""What torch's caching allocator on accelerators is told. Without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from megads.cluster.machine import visible_accelerators
from megads.config.schema import RunConfig
from megads.device.names import ALLOCATOR, ALLOCATOR_VARIABLES, allocator_of, wanted_device
from megads.errors import ConfigError
from megads.launch.preflight.packages import version_of

_OPTIONS = re.compile(r"\w+:[^,\s]+(,\w+:[^,\s]+)*")
FIRST_NAME = (2, 9)
"""The torch that first knows PYTORCH_ALLOC_CONF."""


def allocator_variables(run: RunConfig, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that ranks on this host's devices need, none on a CPU or where the user has set one.

    Raises:
        ConfigError: ALLOCATOR is no list of options, or is set besides torch's own variable.
    """
    asked, theirs = run.launch.allocator, allocator_of(env)
    if asked not in ("auto", "none") and not _OPTIONS.fullmatch(asked):
        raise ConfigError(
            f"ALLOCATOR={asked}: not auto, none, or options such as expandable_segments:True,max_split_size_mb:512"
        )
    if asked != "auto" and theirs:
        name = next(name for name in ALLOCATOR_VARIABLES if env.get(name))
        raise ConfigError(f"ALLOCATOR={asked} and {name}={theirs} are both set; use one of them")
    device = wanted_device(env) or next(iter(visible_accelerators(env)), "cpu")
    told = ALLOCATOR.get(device, "") if asked == "auto" else asked
    if theirs or device == "cpu" or told in ("", "none"):
        return {}
    return {variable_of(version_of("torch")): told}


def variable_of(version: str | None) -> str:
    """Return the name under which torch of a ``version`` looks for the options; of an unknown one the newest."""
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    is_older = numbers is not None and (int(numbers[1]), int(numbers[2])) < FIRST_NAME
    return "PYTORCH_CUDA_ALLOC_CONF" if is_older else ALLOCATOR_VARIABLES[0]
