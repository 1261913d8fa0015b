"""Settings of what is measured besides the losses: FLOPs and profiles."""

from __future__ import annotations

import re

from megads.config.setting import Section, Weak, in_steps, setting
from megads.errors import ConfigError


class ProfileConfig(Section):
    """What is measured, and how."""

    flops_causal: bool = setting(
        False,
        "FLOPS_CAUSAL",
        "TFLOP/s, MFU and HFU count half of the attention products, those that the causal mask leaves",
    )
    steps: str = setting(
        "",
        "PROFILE",
        "steps to trace, e.g. 2-3 or 10 20; on: after PROFILE_STEP_START up to PROFILE_STEP_END",
        flags={"--profile": Weak("on"), "--profile_steps": None},
        words=True,
    )
    step_start: int = in_steps(
        10, "PROFILE_STEP_START --profile-step-start", "with PROFILE=on: steps done when the trace starts"
    )
    step_end: int = setting(
        12, "PROFILE_STEP_END --profile-step-end", "with PROFILE=on: the last one in the trace", unit="steps", gt=0
    )
    ranks: str = setting(
        "0", "PROFILE_RANKS --profile-ranks", "ranks that trace, e.g. 0 3 or 0-3; all: every one", words=True
    )
    flops: bool = setting(
        False,
        "FLOPS_PROFILE FLOPS_PROFILER --flops-profile",
        "write FLOPs and time of every module in one step, next to the formula",
    )
    flops_step: int = setting(
        2,
        "FLOPS_PROFILE_STEP FLOPS_PROFILER_STEP",
        "which step of this start FLOPS_PROFILE counts, or the first one after it that PROFILE does not trace",
        unit="steps",
        gt=0,
    )
    flops_depth: int = setting(
        -1, "FLOPS_PROFILE_DEPTH FLOPS_PROFILER_MODULE_DEPTH", "levels of modules in its table; -1: all", ge=-1
    )


OFF = ("", "0", "off", "no", "false")
ON = ("on", "yes", "true")


def profiled_steps(profile: ProfileConfig) -> range:
    """Return the steps to trace, empty for none.

    Raises:
        ConfigError: the text is not a range of steps.
    """
    text = profile.steps.strip().lower()
    if text in OFF:
        return range(0)
    if text in ON:
        first, last = profile.step_start + 1, profile.step_end
        if first > last:
            raise ConfigError(
                f"PROFILE_STEP_START={profile.step_start} is not before PROFILE_STEP_END={profile.step_end}; "
                f"use PROFILE_STEP_END={first} or more"
            )
        return range(first, last + 1)
    match = re.fullmatch(r"(\d{1,15})(?:\s*[-,]\s*|\s+)(\d{1,15})", text)
    if match is None:
        raise ConfigError(f"PROFILE={profile.steps!r} is not a range of steps; use FIRST-LAST, e.g. 2-3, or on")
    first, last = int(match[1]), int(match[2])
    if not 0 < first <= last:
        raise ConfigError(f"PROFILE={profile.steps!r}: steps start at 1 or later and end after that, e.g. 2-3")
    return range(first, last + 1)


def profiled_ranks(profile: ProfileConfig, world_size: int) -> frozenset[int]:
    """Return the ranks that trace.

    Raises:
        ConfigError: the text is no list of ranks, or one of them is not in the run.
    """
    text = profile.ranks.strip().lower()
    if text == "all":
        return frozenset(range(world_size))
    found: set[int] = set()
    for word in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < world_size:
            raise ConfigError(
                f"PROFILE_RANKS={profile.ranks!r}: {word!r} is not a rank from 0 to {world_size - 1}; "
                "use ranks, e.g. 0 3 or 0-3, or all"
            )
        found.update(range(first, last + 1))
    if not found:
        raise ConfigError("PROFILE_RANKS is empty; use 0, or all")
    return frozenset(found)
