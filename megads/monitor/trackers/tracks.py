"""The one place that rows go through: ``metrics.jsonl``, then every tracker that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from megads.config.secrets import hidden
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile

STEP = "lm_loss"  # a row with this key is that of a step


class Tracker(Protocol):
    """Takes rows. Whatever it raises switches it off and is told once; it never ends a run.

    Attributes:
        name: for the log.
        every: 0: it takes the rows that are told; n: of steps it takes every n-th, told or not.
    """

    name: str
    every: int

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row, in a fraction of a millisecond."""

    def close(self) -> None:
        """Take note that no row follows; what takes time is left to :meth:`settle`."""

    def settle(self) -> str:
        """Wait, not long, until what was taken is where it belongs; return what is to be said of it."""


class Tracks:
    """Hands rows to ``metrics.jsonl`` and to trackers, on rank 0.

    Args:
        file: takes every row that is told; what it raises is the caller's.
        trackers: take them too.
    """

    def __init__(self, file: MetricsFile, trackers: list[Tracker] | None = None):
        self.file, self.trackers = file, list(trackers or [])

    def wants(self, iteration: int) -> bool:
        """Return whether a tracker takes the row of this step although it is not told."""
        return any(each.every and iteration % each.every == 0 for each in self.trackers)

    def write(self, row: Mapping[str, Any], *, told: bool = True) -> None:
        """Hand over one row. ``told``: it goes to ``metrics.jsonl`` too, not only to those that count steps."""
        if told:
            self.file.write(row)
        for each in list(self.trackers):
            if row["iteration"] % each.every == 0 if each.every and STEP in row else told:
                self._try(each, lambda each=each: each.write(row))  # type: ignore[misc]

    def close(self) -> None:
        """Close the file and tell trackers that no row follows."""
        self.file.close()
        for each in list(self.trackers):
            self._try(each, each.close)

    def settle(self) -> None:
        """Give trackers a while to deliver what they took, after :meth:`close`."""
        for each in list(self.trackers):
            said = self._try(each, each.settle)
            if said:
                LOG.info("%s", said)

    def _try(self, tracker: Tracker, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except Exception as error:
            self.trackers = [each for each in self.trackers if each is not tracker]
            why = hidden(f"{type(error).__name__}: {error}")
            LOG.warning("%s is switched off, the run goes on: %s", tracker.name, why)
            return None


def opened(name: str, make: Callable[[], Tracker]) -> list[Tracker]:
    """Return the tracker that ``make`` opens; none, with a line in the log, when it can not be opened."""
    try:
        return [make()]
    except Exception as error:
        LOG.warning("%s can not be used, the run goes on: %s", name, hidden(f"{type(error).__name__}: {error}"))
        return []
