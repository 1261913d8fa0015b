"""The one place that rows go through: ``metrics.jsonl``, then the trackers that the settings ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from megads.config.schema import RunConfig
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.text.secrets import hidden

STEP = "lm_loss"  # a row with this key is that of a step
MOST_CALLS = 1000  # that wait; then the training does, too
MOST_ROWS = 10_000  # that wait for trackers
LONGEST_S = 20.0  # that the end of a run waits for trackers to take what they were given


@dataclass(frozen=True)
class TrackerStart:
    """What a tracker is opened with."""

    run: RunConfig  # derived
    run_dir: Path
    env: Mapping[str, str]  # of this process, for the library of Weights & Biases
    iteration: int  # of the checkpoint that the run resumes from; 0 for a new run
    samples: int  # consumed until then
    world_size: int


class Tracker:
    """Takes rows. Whatever it raises switches it off and is reported once; it never ends a run."""

    name: str  # for the log
    every = 0  # 0: it takes the rows that are reported; n: of steps it takes every n-th, reported or not

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row, in a fraction of a millisecond."""
        raise NotImplementedError

    def close(self) -> None:
        """Take note that no row follows; what takes time is left to :meth:`settle`."""

    def settle(self) -> str:
        """Wait, not long, until what was taken is where it belongs; return a line for the log, or nothing."""
        return ""


class BackgroundWorker:
    """Makes calls in the order in which they are given, on a thread of its own.

    What a call raises is raised by the next :meth:`soon` or :meth:`settle`.
    """

    def __init__(self, most: int = MOST_CALLS) -> None:
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._most = most
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="megads-background", daemon=True)

    def soon(self, do: Callable[[], object]) -> None:
        """Have ``do`` called as soon as what was given before is done."""
        if self._thread.ident is None:
            self._thread.start()
        if self.calls.qsize() >= self._most or self._error is not None:
            self.settle()
        self.calls.put(do)

    def settle(self, limit_s: float | None = None) -> bool:
        """Wait until all that was given is done, not longer than ``limit_s``; return whether it is."""
        is_done = True
        if self._thread.ident is not None:
            done = threading.Event()
            self.calls.put(done.set)
            is_done = done.wait(limit_s)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return is_done

    def _work(self) -> None:
        while True:
            do = self.calls.get()
            try:
                do()
            except BaseException as error:  # whatever it is, it is raised where it is waited for
                self._error = self._error or error


class MetricsSink:
    """Hands rows to ``metrics.jsonl`` and to trackers, on rank 0.

    The file has a row when :meth:`write` returns; what it raises is the caller's. Trackers get the row a moment
    later from a thread of their own, so that they take no time from the training.

    Attributes:
        background: makes rows and lines in the background; :meth:`close` waits for it.
    """

    def __init__(self, file: MetricsFile, trackers: list[Tracker] | None = None):
        self.file, self.trackers = file, list(trackers or [])
        self.background, self._handing = BackgroundWorker(), BackgroundWorker(MOST_ROWS + 1)

    def wants(self, iteration: int) -> bool:
        """Return whether a tracker takes the row of this step although it is not reported."""
        return any(each.every and iteration % each.every == 0 for each in self.trackers)

    def write(self, row: Mapping[str, Any], *, reported: bool = True) -> None:
        """Hand over one row, which nobody changes any more.

        ``reported``: it goes to ``metrics.jsonl`` too, not only to those that count steps.
        """
        if reported:
            self.file.write(row)
        if self._handing.calls.qsize() >= MOST_ROWS and self.trackers:
            names = ", ".join(each.name for each in self.trackers)
            LOG.warning("%s: %d rows wait, so it is disabled; the run continues", names, MOST_ROWS)
            self.trackers = []
        if self.trackers:
            self._handing.soon(partial(self._hand_over, row, reported))

    def close(self, limit_s: float = LONGEST_S) -> None:
        """Close the file and the trackers; wait for them, not longer than ``limit_s``.

        Raises:
            OSError: ``metrics.jsonl`` could not take all of its rows.
        """
        try:
            try:
                if not self.background.settle(limit_s):
                    LOG.warning("%s: its last rows were not written in %g s", self.file.file.name, limit_s)
            finally:
                self.file.close()
        finally:
            for each in self.trackers:
                self._handing.soon(partial(self._try, each, each.close))
            if not self._handing.settle(limit_s):
                LOG.warning("trackers did not write their last rows in %g s; metrics.jsonl has them", limit_s)
                self.trackers = []

    def _hand_over(self, row: Mapping[str, Any], reported: bool) -> None:
        for each in list(self.trackers):
            if row["iteration"] % each.every == 0 if each.every and STEP in row else reported:
                self._try(each, partial(each.write, row))

    def settle(self) -> None:
        """Give trackers a while to deliver what they took, after :meth:`close`."""
        for each in list(self.trackers):
            if line := self._try(each, each.settle):
                LOG.info("%s", line)

    def _try(self, tracker: Tracker, do: Callable[[], Any]) -> Any:
        if tracker in self.trackers:
            try:
                return do()
            except Exception as error:
                self.trackers = [each for each in self.trackers if each is not tracker]
                why = hidden(f"{type(error).__name__}: {error}")
                LOG.warning("%s is disabled, the run continues: %s", tracker.name, why)
        return None
