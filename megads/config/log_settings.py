"""Settings of what a run tells, and to whom."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting


class LogConfig(Section):
    """What a run tells."""

    log_interval: int = setting(1, env="LOG_INTERVAL", help="steps between log lines", unit="steps", gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", env="LOG_LEVEL", help="of rank 0")
