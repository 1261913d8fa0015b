"""Which engine runs a run, and why. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megads.config.schema import RunConfig

AUTO_TAKES_NATIVE = False
"""Whether ``ENGINE=auto`` takes the native engine where that can do what the settings ask for."""

Kind = Literal["native", "deepspeed"]


@dataclass(frozen=True)
class Choice:
    """An engine, and in words why it is that one; no reason where the user named it."""

    kind: Kind
    reason: str = ""


def choose(run: RunConfig, world_size: int) -> Choice:
    """Return the engine of a derived ``run`` on ``world_size`` ranks."""
    if run.engine.kind != "auto":
        return Choice(run.engine.kind)
    return Choice("native") if AUTO_TAKES_NATIVE else Choice("deepspeed", "it is the default")
