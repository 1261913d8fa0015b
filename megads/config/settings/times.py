"""Settings of what a run reports its steps' time."""

from __future__ import annotations

from megads.config.setting import Section, setting


class TimesConfig(Section):
    """What a run reports its steps' time, and of ranks that hold the others up."""

    split: bool = setting(
        True, env="TIME_SPLIT", help="log what a step's time is spent on: data, forward, backward, communication, ..."
    )
    straggler_interval: int = setting(
        100,
        env="STRAGGLER_INTERVAL",
        help="steps between checks for stragglers; 0: never; needs TIME_SPLIT",
        unit="steps",
        ge=0,
    )
    straggler_ratio: float = setting(
        1.2,
        env="STRAGGLER_RATIO",
        help="a rank that takes this many times the median of its peers is reported as a straggler",
        gt=1,
    )
