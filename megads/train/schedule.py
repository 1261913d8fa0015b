"""The schedule of learning rate and weight decay, as the training loop asks for it."""

from __future__ import annotations

from megads.config.schedule import Rates, Schedule

__all__ = ["Rates", "Schedule"]
