"""The log: rank 0 in plain lines, in colours on a terminal, the others only when something is wrong."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from megads.errors import plain

LOG = logging.getLogger("megads")

FILE = {"only": "file"}  # ``extra`` of a line that goes to the run's log file and not to the console
ALSO = "also"  # key in ``extra`` of what follows a line in the run's log file
BOLD, DIM, RED, YELLOW, CYAN, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"
LABEL = re.compile(r"^([a-zA-Z][\w .-]{0,7}) +(?=\S)")  # of a banner's or a summary's line, eight letters wide
STEP = re.compile(r"^(step +\d+/\d+)( \| loss +)(\S+)")
SKIPPED = re.compile(r"\| (SKIPPED.*)$")


class _Plain(logging.Filter):
    """Names and messages from files cannot move the cursor or hide lines: what does not print is escaped."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = plain(text, "\n\t"), ()
        return True


class _Console(logging.Formatter):
    """Lines as they are, in colours on a terminal that shows them."""

    def __init__(self, form: str, stream: IO[str]):
        super().__init__(form)
        self.colours = may_colour(stream)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return coloured(text, level=record.levelname.lower()) if self.colours else text


class _LogFile(logging.FileHandler):
    """A copy of the log; a disk that fills up ends the copy, not the run."""

    def format(self, record: logging.LogRecord) -> str:
        text, also = super().format(record), getattr(record, ALSO, "")
        # The same time before both.
        return f"{text}\n{record.asctime} {also}" if also else text

    def handleError(self, record: logging.LogRecord) -> None:
        reason = sys.exc_info()[1]
        LOG.removeHandler(self)
        with suppress(OSError):  # what is still in its buffer has no place either
            self.close()
        LOG.warning("%s: no longer written: %s", self.baseFilename, reason)


def _only(place: str) -> Callable[[logging.LogRecord], bool]:
    return lambda record: getattr(record, "only", place) == place


def start_log(rank: int, level: str, path: Path | None = None) -> logging.Logger:
    """Set up the run's log on stderr and return it.

    Args:
        rank: rank 0 prints bare lines at ``level``; the others print warnings and errors,
            each with its rank and host.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        path: where rank 0 also writes its lines, with the time before each; None: nowhere.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Console("%(message)s" if rank == 0 else f"[{where(rank)}] %(message)s", sys.stderr))
    handler.addFilter(_only("console"))
    # A line says nothing of the code, the thread or the process that it comes from: nobody looks for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    LOG.handlers = [handler]
    if not any(isinstance(each, _Plain) for each in LOG.filters):
        LOG.addFilter(_Plain())
    if rank == 0 and path is not None:
        copy = _LogFile(path, encoding="utf8", delay=True)
        copy.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        copy.addFilter(_only("file"))
        LOG.addHandler(copy)
    LOG.propagate = False
    LOG.setLevel(level.upper() if rank == 0 else max(logging.WARNING, logging.getLevelName(level.upper())))
    return LOG


def where(rank: int) -> str:
    """Return ``rank R host H``."""
    return f"rank {rank} host {socket.gethostname()}"


def failure_text(rank: int, error: BaseException) -> str:
    """Return ``error``'s traceback with rank and host before every line, for one write to stderr."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "".join(f"[{where(rank)}] {line}\n" for line in lines)


def may_colour(stream: IO[str]) -> bool:
    """Return whether ``stream`` is a terminal that shows colours, and the user has not said no (https://no-color.org)."""
    try:
        is_terminal = stream.isatty()
    except ValueError:  # closed
        return False
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def coloured(text: str, *, level: str = "info") -> str:
    """Return the lines of ``text`` with control codes around what matters; without them the text is the same.

    Args:
        text: lines of a banner, a step or a summary.
        level: ``warning`` or ``error`` colours all of it.
    """
    if level in ("warning", "error"):
        return f"{YELLOW if level == 'warning' else RED}{text}{PLAIN}"
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    if line.startswith("megads: "):
        return f"{YELLOW}{line}{PLAIN}"
    if line.startswith("$ "):
        return f"{DIM}{line}{PLAIN}"
    if STEP.match(line):
        line = STEP.sub(rf"{CYAN}\1{PLAIN}\2{BOLD}\3{PLAIN}", line)
        return SKIPPED.sub(rf"| {YELLOW}\1{PLAIN}", line)
    match = LABEL.match(line)
    if match and match.end() == 9:  # the label's column and a blank
        return f"{CYAN}{line[:9].rstrip()}{PLAIN}{line[len(line[:9].rstrip()) :]}"
    return line
