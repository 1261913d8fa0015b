"""Settings of what a run tells of its steps' time."""

from __future__ import annotations

from megads.config.setting import Section, setting


class TimesConfig(Section):
    """What a run tells of its steps' time, and of ranks that hold the others up."""

    split: bool = setting(
        True, env="TIME_SPLIT", help="tell what a step's time was spent on: data, forward, backward, communication, ..."
    )
    straggler_interval: int = setting(
        100,
        env="STRAGGLER_INTERVAL",
        help="steps between looks for ranks that compute longer than others; 0: never; needs TIME_SPLIT",
        unit="steps",
        ge=0,
    )
    straggler_ratio: float = setting(
        1.2, env="STRAGGLER_RATIO", help="a rank is told of from this many times the median of its like", gt=1
    )
