"""Settings of what a run does when its numbers go wrong, and of runs that repeat bit for bit."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting


class StabilityConfig(Section):
    """What a run does when its numbers go wrong, and whether it can be repeated bit for bit."""

    on_spike: Literal["none", "skip", "stop", "rollback"] = setting(
        "none",
        env="ON_SPIKE",
        flags={"--on-spike": None},
        help="a step whose loss is far above the ones before: skip it, end the run, or roll back and skip the data",
    )
    on_nan: Literal["skip", "stop", "rollback"] = setting(
        "skip",
        env="ON_NAN",
        flags={"--on-nan": None},
        help="a step whose loss or gradient is not finite; overflows that the fp16 loss scale handles do not count",
    )
    spike_factor: float = setting(
        8.0,
        env="SPIKE_FACTOR",
        help="a loss is a spike above median + this x spread of SPIKE_WINDOW losses (1.4826 MAD, at least 1 %)",
        gt=0,
    )
    spike_window: int = setting(
        100,
        env="SPIKE_WINDOW",
        help="number of accepted losses that the next one is compared with; no spike is reported before that many",
        unit="steps",
        ge=3,
        le=1000,
    )
    spike_after: int = setting(
        200, env="SPIKE_AFTER", help="no loss of the first steps of a run is a spike", unit="steps", ge=0
    )
    rollback_skip: int = setting(
        0,
        env="ROLLBACK_SKIP",
        help="steps after the bad one whose data a rollback also skips",
        unit="steps",
        ge=0,
    )
    max_rollbacks: int = setting(
        3, env="MAX_ROLLBACKS", help="rollbacks to one checkpoint before the run ends with an error", gt=0
    )
    deterministic: bool = setting(
        False,
        env="DETERMINISTIC",
        flags={"--deterministic-mode": True},
        help="the same run twice is the same bit for bit; slower on accelerators",
    )
