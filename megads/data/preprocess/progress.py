"""Report progress: a line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TextIO

from megads.text.plural import plural

_EVERY_S = 10.0
_REDRAW_S = 0.2
_WINDOW_S = 30.0  # of the speed that the ETA is computed from


@dataclass(frozen=True)
class Done:
    """How far all processes together are."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    used: int = 0  # bytes of the input, as it is on disk
    bad: int = 0  # lines

    def __add__(self, other: Done) -> Done:
        return Done(*(mine + more for mine, more in zip(vars(self).values(), vars(other).values(), strict=True)))


class Meter:
    """Writes progress to ``stream``.

    ``total`` is the bytes of the input on disk, 0 where unknown; ``interval`` the documents between two lines where
    there is no terminal, 0: by time; ``has_tokens`` whether any are counted.
    """

    def __init__(self, stream: TextIO, total: int, interval: int = 0, *, has_tokens: bool = True):
        self._stream, self._total, self._interval, self._has_tokens = stream, total, interval, has_tokens
        self._is_terminal = stream.isatty()
        self._began = self._shown = time.monotonic()
        self._first: Done | None = None
        self._documents = 0  # when a line was written last
        self._recent: deque[tuple[float, int]] = deque()
        self._width = 0

    def begin(self, done: Done) -> None:
        """Count time from now, and work from ``done``, without what an earlier run did."""
        self._first, self._documents = done, done.documents
        self._began = self._shown = time.monotonic()

    def show(self, done: Done) -> None:
        """Show ``done`` if it is time to."""
        if self._first is None:
            self.begin(done)
        now = time.monotonic()
        self._recent.append((now, done.used))
        while now - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()
        waited = now - self._shown
        if self._interval and not self._is_terminal:
            due = waited >= 1 and done.documents - self._documents >= self._interval
        else:
            due = waited >= (_REDRAW_S if self._is_terminal else _EVERY_S)
        if due:
            self._shown, self._documents = now, done.documents
            self._write(self._line(done, now))

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def summary(self, done: Done) -> str:
        """Return the line that ends a run."""
        seconds, speed, _ = self._speeds(done, time.monotonic())
        return f"{done.text_bytes / 1e6:,.1f} MB in {seconds:.1f} s, {speed:.1f} MB/s"

    def _speeds(self, done: Done, now: float) -> tuple[float, float, float]:
        """Return seconds, MB of text a second, millions of tokens a second."""
        first, seconds = self._first or Done(), max(now - self._began, 1e-6)
        text_bytes, tokens = done.text_bytes - first.text_bytes, done.tokens - first.tokens
        return seconds, text_bytes / seconds / 1e6, tokens / seconds / 1e6

    def _line(self, done: Done, now: float) -> str:
        _, speed, tokens = self._speeds(done, now)
        share = f"{done.used / self._total:6.1%}  " if self._total else ""
        bad = f"  {done.bad} bad lines" if done.bad else ""
        rate = f"{tokens:.2f} M tokens/s  " if self._has_tokens else ""
        return (
            f"{share}{done.text_bytes / 1e6:,.0f} MB  {speed:.1f} MB/s  {rate}"
            f"{plural(done.documents, 'document', ',')}{bad}{self._eta(done)}"
        )

    def _eta(self, done: Done) -> str:
        (begin, used), (end, now_used) = self._recent[0], self._recent[-1]
        if not self._total or now_used <= used:
            return ""
        left = int((self._total - done.used) * (end - begin) / (now_used - used))
        return f"  ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"

    def _write(self, text: str) -> None:
        if self._is_terminal:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
