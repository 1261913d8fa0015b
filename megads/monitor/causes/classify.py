"""From what is known of an end to its cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from megads.errors import EXIT_DONE, EXIT_STOPPED, EXIT_WRONG
from megads.monitor.causes.patterns import PATTERNS, Cause, Pattern
from megads.text.units import duration

NEAR_END_S = 300.0
"""A signal that comes so long before the end of an allocation, or later, is taken for the end of its time."""

SUSPECTS = ("node", "fabric", "unknown")
"""Causes after which the host where it happened may be broken. Only a check of the host shows whether it is."""

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_SIGNAL = re.compile(r"signal (\d+)")
_SILENT = re.compile(r"ended with exit code (\d+) and no message")
_RUNNING_PYTHON = re.compile(r"^\s*(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class End:
    """What is known of an end.

    Attributes:
        exit_code: of the run.
        kind: as in :class:`megads.monitor.run_state.outcome.Outcome`; "" where no rank said anything.
        message: what the rank that failed said.
        said: the last lines of launcher, ranks and scheduler, as far as they are kept.
        left_s: from the end to that of the allocation; None: unknown.
        aborted_by: the signal at which the launcher gave up; 0: none.
        has_trained: whether a step was done since the start.
    """

    exit_code: int
    kind: str = ""
    message: str = ""
    host: str = ""
    said: str = ""
    left_s: float | None = None
    aborted_by: int = 0
    has_trained: bool = False


@dataclass(frozen=True)
class Finding:
    """Why a start ended, and where, if that is known."""

    cause: Cause | Literal[""]  # "": it ended well
    verdict: str
    host: str = ""


def classify(end: End) -> Finding:
    """Return the cause of an end, and one line about it."""
    if end.exit_code == EXIT_DONE:
        return Finding("", "complete")
    if end.exit_code == EXIT_STOPPED:
        return _stopped(end)
    if end.exit_code == 128 + signal.SIGINT or end.aborted_by == signal.SIGINT:
        return Finding("user", "interrupted by Ctrl-C")
    disk = next((row for row in PATTERNS if row.cause == "filesystem" and row.search(end.message)), None)
    if disk and end.kind == "wrong":  # ranks call a full disk a wrong input
        return _of_pattern(disk, end, end.message)
    if end.kind == "wrong" or (end.exit_code == EXIT_WRONG and end.kind in ("", "wrong")):
        return Finding("user", _first(end.message) or "a wrong setting or input", end.host)
    if end.kind == "import":
        return Finding("user", f"a package is missing or broken: {_first(end.message)}", end.host)
    if end.kind in ("memory", "replica"):
        return _as_it_says(end)
    # That another rank is gone, or does not arrive, is no cause; what was printed may be.
    is_hearsay = end.kind in ("lost", "hang")
    if not is_hearsay and (found := _find(end.message, end)):
        return found
    # Libraries print what they do without, as packages and plugins: no reason for the end of a run that trained, or of
    # a rank that was killed.
    is_aside = end.has_trained or end.kind == "killed"
    if found := _find(end.said, end, {"fabric": is_hearsay, "user": is_aside}):
        return found
    return _without_words(end)


def _stopped(end: End) -> Finding:
    if "allocation ends" in end.message or (end.left_s is not None and end.left_s <= NEAR_END_S):
        return Finding("time", f"saved before the end of the allocation: {_first(end.message)}")
    return Finding("", f"saved and stopped: {_first(end.message)}")


def _as_it_says(end: End) -> Finding:
    """Return the cause that ranks themselves have found: memory is short, or copies of weights differ."""
    causes: dict[str, Cause] = {"memory": "memory", "replica": "node" if end.host else "unknown"}
    return Finding(causes[end.kind], _first(end.message), end.host)


def _find(text: str, end: End, skipped: Mapping[str, bool] = MappingProxyType({})) -> Finding | None:
    """Return what the first row says that is in ``text``; rows of causes that are ``skipped`` do not count."""
    row = next((row for row in PATTERNS if not skipped.get(row.cause) and row.search(text)), None)
    return _of_pattern(row, end, text) if row else None


def _of_pattern(row: Pattern, end: End, text: str) -> Finding:
    match = row.search(text)
    named = match.groupdict().get("host") if match else ""
    line = _line_of(text, match) if match else ""
    host = named or ("" if row.cause == "time" else end.host)
    return Finding(row.cause, f"{row.says} ({row.source}): {line}", host)


def _without_words(end: End) -> Finding:
    """Return the cause of an end of which only signals, codes and kinds are known."""
    number = _signal_of(end)
    if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU):
        return _ended_by_others(end, number)
    if end.kind == "hang":
        return _hang(end)
    if end.kind == "lost":
        where = f" on {end.host}" if end.host else ""
        return Finding("fabric", f"a rank{where} is gone and said nothing", end.host)
    if number == signal.SIGKILL:
        return Finding("unknown", _first(end.message) or "killed by signal 9, nobody says why", end.host)
    if number in _CRASHES:
        name = signal.Signals(number).name
        text = _first(end.message) or f"killed by signal {number} ({name})"
        return Finding("unknown", f"{text}: a bug of a library or a broken host", end.host)
    codes = {126: "the program cannot be executed", 127: "the program was not found"}
    if not end.kind and end.exit_code in codes:
        return Finding("user", f"exit code {end.exit_code}: {codes[end.exit_code]}")
    return Finding("unknown", _exception(end.message) or f"exit code {end.exit_code}", end.host)


def _ended_by_others(end: End, number: int) -> Finding:
    """Return the cause of a TERM or the like: the end of the time only if the time is over."""
    name = signal.Signals(number).name
    if end.left_s is None:
        return Finding("unknown", f"ended by signal {number} ({name}); how much of the wall time was left is not known")
    if end.left_s <= NEAR_END_S:
        return Finding("time", f"ended by signal {number} ({name}) at the end of the wall time")
    left = duration(end.left_s)
    return Finding("unknown", f"ended by signal {number} ({name}) with {left} left, so not by the wall time")


def _hang(end: End) -> Finding:
    if "did not answer" in end.message:
        return Finding("node", _first(end.message), end.host)
    if "did not arrive" in end.message:
        return Finding("unknown", _first(end.message), end.host)
    return Finding("fabric", _first(end.message))


def _signal_of(end: End) -> int:
    """Return the signal that ended a rank, else the launcher, 0: none."""
    if end.aborted_by:
        return end.aborted_by
    match = _SIGNAL.search(end.message)
    if end.kind in ("killed", "lost", "") and match:
        return int(match[1])
    if match := _SILENT.search(end.message):  # a rank whose own child or handler ended it
        code = int(match[1])
        return code - 128 if 128 < code <= 192 else 0
    codes = {256 + n: n for n in range(1, 65)} | {128 + n: n for n in range(1, 65)}  # PBS, shells
    return codes.get(end.exit_code, 0) if end.kind in ("killed", "lost", "") else 0


def _exception(message: str) -> str:
    """Return the last line of an exception with its type, else the first line of ``message``."""
    found = _RUNNING_PYTHON.findall(message)
    return f"{found[-1][0]}: {found[-1][1]}" if found else _first(message)


def _first(message: str) -> str:
    return (message.splitlines() or [""])[0][:300]


def _line_of(text: str, match: re.Match[str]) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)].strip()[:200]
