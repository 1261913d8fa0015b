"""Work that is done in the background, one piece after the other: what a step's numbers are reported with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

MOST = 1000  # pieces that wait; then the training does, too


class BackgroundWorker:
    """Does what it is given in the order in which it is given, on a thread of its own.

    What a piece raises is raised by the next call of :meth:`soon` or :meth:`settle`.
    """

    def __init__(self) -> None:
        self._pieces: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="megads-voice", daemon=True)

    def soon(self, do: Callable[[], object]) -> None:
        """Have ``do`` called as soon as what was given before is done."""
        if self._thread.ident is None:
            self._thread.start()
        if self._pieces.qsize() >= MOST or self._error is not None:
            self.settle()
        self._pieces.put(do)

    def settle(self, limit_s: float | None = None) -> bool:
        """Wait until all that was given is done, not longer than ``limit_s``; return whether it is."""
        is_done = True
        if self._thread.ident is not None:
            done = threading.Event()
            self._pieces.put(done.set)
            is_done = done.wait(limit_s)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return is_done

    def _work(self) -> None:
        while True:
            do = self._pieces.get()
            try:
                do()
            except BaseException as error:
                self._error = self._error or error
