"""Say how far long work is, so that nobody takes it for a hang."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

FIRST_S, EVERY_S = 5.0, 30.0
"""Until the first line, and between two of them."""

_LOG = logging.getLogger("megads")


class Pace:
    """A line in the log now and then while a ``with`` block works: share done, time passed, ETA.

    Args:
        what: the line begins with it.
        total: of what :meth:`step` is called with.
        speaks: False: no line at all.
    """

    def __init__(self, what: str, total: int, speaks: bool = True):
        self.what, self.total, self.done = what, total, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True) if speaks and total else None

    def __enter__(self) -> Pace:
        self._began = time.monotonic()
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def step(self, size: int) -> None:
        """Add to what is done."""
        self.done += size

    def _speak(self) -> None:
        pause = FIRST_S
        while not self._over.wait(pause):
            passed, share = time.monotonic() - self._began, min(1.0, self.done / self.total)
            eta = f", ETA {passed / share - passed:.0f} s" if 0.02 < share < 1 else ""
            _LOG.info("%s: %.0f %%, %.0f s%s", self.what, 100 * share, passed, eta)
            pause = EVERY_S
