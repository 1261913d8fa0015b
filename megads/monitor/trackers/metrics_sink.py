"""The one place that rows go through: ``metrics.jsonl``, then every tracker that was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import Full, Queue
from typing import Any, Protocol

from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.monitor.trackers.background import BackgroundWorker
from megads.text.secrets import hidden

STEP = "lm_loss"  # a row with this key is that of a step
MOST_ROWS = 10_000  # that wait for trackers
LONGEST_S = 20.0  # that the end of a run waits for trackers to take what they were given


class Tracker(Protocol):
    """Takes rows. Whatever it raises switches it off and is reported once; it never ends a run.

    Attributes:
        name: for the log.
        every: 0: it takes the rows that are reported; n: of steps it takes every n-th, told or not.
    """

    name: str
    every: int

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row, in a fraction of a millisecond."""

    def close(self) -> None:
        """Take note that no row follows; what takes time is left to :meth:`settle`."""

    def settle(self) -> str:
        """Wait, not long, until what was taken is where it belongs; return what is to be said of it."""


class MetricsSink:
    """Hands rows to ``metrics.jsonl`` and to trackers, on rank 0.

    The file has a row when :meth:`write` returns. Trackers get it a moment later from a thread of
    their own: what they make of it is none of the training's time.

    Args:
        file: takes every row that is reported; what it raises is the caller's.
        trackers: take them too.

    Attributes:
        voice: makes rows and lines in the background; :meth:`close` waits for it.
    """

    def __init__(self, file: MetricsFile, trackers: list[Tracker] | None = None):
        self.file, self.trackers, self.voice = file, list(trackers or []), BackgroundWorker()
        self._rows: Queue[tuple[Mapping[str, Any], bool] | None] = Queue(MOST_ROWS)
        self._thread = threading.Thread(target=self._hand_over, name="megads-track", daemon=True)

    def wants(self, iteration: int) -> bool:
        """Return whether a tracker takes the row of this step although it is not told."""
        return any(each.every and iteration % each.every == 0 for each in self.trackers)

    def write(self, row: Mapping[str, Any], *, told: bool = True) -> None:
        """Hand over one row, which nobody changes any more.

        ``told``: it goes to ``metrics.jsonl`` too, not only to those that count steps.
        """
        if told:
            self.file.write(row)
        if self.trackers:
            if self._thread.ident is None:
                self._thread.start()
            try:
                self._rows.put_nowait((row, told))
            except Full:
                names = ", ".join(each.name for each in self.trackers)
                LOG.warning("%s: %d rows wait, so it is disabled; the run continues", names, MOST_ROWS)
                self.trackers = []

    def close(self, limit_s: float = LONGEST_S) -> None:
        """Close the file and tell trackers that no row follows; wait for them, not longer than ``limit_s``.

        Raises:
            OSError: ``metrics.jsonl`` could not take all of its rows.
        """
        try:
            try:
                if not self.voice.settle(limit_s):
                    LOG.warning("%s: its last rows were not written in %g s", self.file.file.name, limit_s)
            finally:
                self.file.close()
        finally:
            if self._thread.ident is None:
                self._thread.start()
            with suppress(Full):
                self._rows.put(None, timeout=limit_s)
            self._thread.join(limit_s)
            if self._thread.is_alive():
                LOG.warning("trackers did not write their last rows in %g s; metrics.jsonl has them", limit_s)
                self.trackers = []

    def _hand_over(self) -> None:
        while (taken := self._rows.get()) is not None:
            row, told = taken
            for each in list(self.trackers):
                if row["iteration"] % each.every == 0 if each.every and STEP in row else told:
                    self._try(each, partial(each.write, row))
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
            LOG.warning("%s is disabled, the run continues: %s", tracker.name, why)
            return None


def opened(name: str, make: Callable[[], Tracker]) -> list[Tracker]:
    """Return the tracker that ``make`` opens; none, with a line in the log, when it cannot be opened."""
    try:
        return [make()]
    except Exception as error:
        LOG.warning("%s cannot be used, the run continues: %s", name, hidden(f"{type(error).__name__}: {error}"))
        return []
