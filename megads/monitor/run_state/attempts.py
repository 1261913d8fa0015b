"""Every start of a run (``attempts.jsonl``): when, where, in which layout, how it ended, and why.

A start has a row when it begins and another one when it ends; the later one counts. A rank that
took the place of its launcher writes no second row, nor does a job that was killed: what it
left (``outcome.json``, ``heartbeat.json``) is read in its place, and the next
start of the run writes it down before that is gone. Rows are never removed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from megads.config.run_files import ATTEMPTS, HEARTBEAT, OUTCOME
from megads.errors import EXIT_FAILED
from megads.monitor.causes.classify import End, classify
from megads.monitor.rows import Damage, parse_rows, sealed
from megads.monitor.run_state.outcome import read_heartbeat, read_outcome
from megads.monitor.run_state.runs import FRESH_S, STARTING_S, changed_at
from megads.storage.open_file import open_binary
from megads.storage.reading import read_bytes

_MOST_TIME = 1e18
_SAME_S = 2.0  # the same, of hosts that set theirs by the network
_CLOCKS_S = 60.0  # by which those of two hosts may differ
SILENT = "it left no outcome; its job was ended or its host went down"
"""The message of a start that says nothing of its end."""


@dataclass(frozen=True)
class Attempt:
    """One start of the run. Iterations are counted from 0 = nothing done.

    Attributes:
        job: the scheduler's id, "" outside of a job.
        attempt: restarts of the same command are numbered from 0.
        started: unix seconds, as ``ended``, which is 0 while it runs.
        hosts: on which its ranks ran.
        layout: as ``TP 2 PP 1 SP 1 DP 4 ZERO 1``.
        began: the iteration of the checkpoint it started from.
        reached: the last iteration known to be done.
        kind: of the end, as in :class:`megads.monitor.run_state.outcome.Outcome`.
        cause: the class of the end; see ``docs/campaigns.md``.
        verdict: one line about the cause.
        rank: that failed, -1: none or unknown; ``host``: where.
        excluded: hosts that were left out after it.
        spent: seconds of rank 0 in each phase (``set-up``, ``step``, ``validation``, ``save``, ...).
    """

    job: str = ""
    attempt: int = 0
    started: float = 0.0
    ended: float = 0.0
    hosts: tuple[str, ...] = ()
    num_ranks: int = 0
    layout: str = ""
    grad_acc_steps: int = 0
    began: int = 0
    reached: int = 0
    exit_code: int = 0
    kind: str = ""
    cause: str = ""
    verdict: str = ""
    rank: int = -1
    host: str = ""
    message: str = ""
    excluded: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Return whether it runs, as far as its rows tell."""
        return not self.ended

    @property
    def key(self) -> tuple[str, int, float]:
        """What its two rows have in common."""
        return self.job, self.attempt, self.started


def append_attempt(run_dir: Path, attempt: Attempt) -> None:
    """Add a row. A disk that is full or gone loses it; a run does not fail for it."""
    row = sealed(json.dumps(asdict(attempt)))
    with suppress(OSError), open(run_dir / ATTEMPTS, "ab") as file:
        # The row before may have been cut by a full disk or a kill.
        is_cut = file.tell() > 0 and not _ends_with_line(run_dir / ATTEMPTS)
        file.write(f"{chr(10) if is_cut else ''}{row}\n".encode())


def _ends_with_line(path: Path) -> bool:
    with open_binary(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_attempts(run_dir: Path, now: float | None = None, damage: Damage | None = None) -> list[Attempt]:
    """Return all starts of the run in ``run_dir``, in the order in which they began.

    One without an end gets what its files say of it, and stays open while its heartbeat is fresh.

    Args:
        now: unix seconds; None: the present.
        damage: takes rows that differ from their checksums, which are skipped; None: a line of the log does.
    """
    seen = Damage(only_rows=True) if damage is None else damage
    found = _merged(run_dir, seen)
    if damage is None:
        seen.report(run_dir / ATTEMPTS)
    for number, later in enumerate(found[1:]):
        if found[number].is_open:  # whoever starts later holds the folder
            found[number] = _lost(found[number], later.started, found[number].reached)
    if found and found[-1].is_open:
        found[-1] = _with_end(run_dir, found[-1], time.time() if now is None else now)
    return found


def close_attempts(run_dir: Path) -> None:
    """Write down how the last start ended, before its files are removed for the next one."""
    found = _merged(run_dir, Damage())
    if found and found[-1].is_open:
        append_attempt(run_dir, _with_end(run_dir, found[-1], float("inf")))


def _merged(run_dir: Path, damage: Damage) -> list[Attempt]:
    try:
        rows = parse_rows(read_bytes(run_dir / ATTEMPTS), damage)
    except OSError:
        return []
    merged: dict[tuple[str, int, float], Attempt] = {}
    for each in filter(None, map(_attempt, rows)):
        merged[each.key] = each
    return list(merged.values())


def _attempt(row: dict[str, Any]) -> Attempt | None:
    """Return a row, None where it is of another kind or version."""
    values = {}
    for each in fields(Attempt):
        if each.name == "spent":
            continue
        value, usual = row.get(each.name, each.default), each.default
        if isinstance(usual, tuple):
            if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
                return None
            value = tuple(value)
        elif isinstance(usual, float):
            if not _is_seconds(value):
                return None
            value = float(value)
        elif type(value) is not type(usual):
            return None
        values[each.name] = value
    spent = row.get("spent", {})
    if not isinstance(spent, dict) or not all(map(_is_seconds, spent.values())):
        return None
    return Attempt(**values, spent=spent) if values["started"] else None


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_TIME


def spent_by(run_dir: Path, attempt: Attempt) -> Mapping[str, float]:
    """Return what the heartbeat in ``run_dir`` says of the time of ``attempt``; nothing if it is of another start."""
    beat = read_heartbeat(run_dir)
    if beat is None or beat.attempt != attempt.attempt:
        return attempt.spent
    # Its rank came to be after the start; that of a start shortly before, which had the same number, did not.
    is_its_own = beat.time - sum(beat.spent.values()) >= attempt.started - _SAME_S
    return beat.spent if beat.spent and is_its_own else attempt.spent


def _with_end(run_dir: Path, attempt: Attempt, now: float) -> Attempt:
    """Return ``attempt`` with the end that its files say, open where it still runs."""
    attempt = replace(attempt, spent=spent_by(run_dir, attempt))
    written, outcome, beat = changed_at(run_dir / OUTCOME), read_outcome(run_dir), read_heartbeat(run_dir)
    is_its_own = beat is not None and beat.attempt == attempt.attempt and beat.time >= attempt.started - _CLOCKS_S
    if beat is not None and is_its_own and abs(written - beat.time) > FRESH_S:
        written = beat.time  # the folder was copied, or its file system has a clock of its own
    if outcome is not None:  # that of an earlier start was removed for this one
        told = classify(End(outcome.exit_code, outcome.kind, outcome.message, outcome.host))
        return replace(
            attempt, ended=max(written, attempt.started), reached=max(outcome.iteration, attempt.began),
            exit_code=outcome.exit_code, kind=outcome.kind, rank=outcome.rank, host=told.host or outcome.host,
            message=outcome.message, cause=told.cause, verdict=told.verdict,
        )  # fmt: skip
    beaten = changed_at(run_dir / HEARTBEAT)
    if beat is None or not is_its_own:
        quiet = now - attempt.started
        return attempt if quiet < STARTING_S else _lost(attempt, attempt.started, attempt.began)
    # The clocks of two hosts need not agree; either of them may show that it is fresh.
    if min(abs(now - beat.time), abs(now - beaten)) < FRESH_S:
        return replace(attempt, reached=max(beat.iteration, attempt.began))
    return _lost(attempt, beat.time, beat.iteration)


def _lost(attempt: Attempt, ended: float, reached: int) -> Attempt:
    return replace(
        attempt, ended=max(ended, attempt.started), reached=max(reached, attempt.began), exit_code=EXIT_FAILED,
        kind="lost", message=SILENT, cause="unknown", verdict=SILENT,
    )  # fmt: skip
