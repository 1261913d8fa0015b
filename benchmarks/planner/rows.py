"""Measured rows, published by others, that the planner's predictions are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        source: where it is from.
        system: that was measured, one of ``megads.plan.time.systems.SYSTEMS``.
        place: the machine or device (``megads.plan.places.place.place_of``).
        settings: environment settings that describe the run, as a user gives them.
        ranks: devices.
        measured: the value.
        unit: of it: ``s`` per step, ``GiB``.
        group: model that the row is about; all rows of a group are left out together in cross-validation.
        suite: published table that it is from.
        sweep: rows with the same sweep are layouts of the same work; empty: it is in none.
    """

    source: str
    system: str
    place: str
    settings: dict[str, str] = field(hash=False)
    ranks: int
    measured: float
    unit: str
    group: str
    suite: str = ""
    sweep: str = ""
