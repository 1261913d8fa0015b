"""What the folders of runs hold: state, step, loss, speed. Reads the ends of files only."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.config.run_files import CONFIG, HEARTBEAT, LOG_FILE, METRICS, OUTCOME
from megads.errors import EXIT_DONE, EXIT_STOPPED
from megads.monitor.columns import with_means
from megads.monitor.plots.source import read_settings
from megads.monitor.rows import Damage, parse_rows
from megads.monitor.run_state.branches import read_branch
from megads.monitor.run_state.outcome import Heartbeat, Outcome, read_heartbeat, read_outcome
from megads.monitor.throughput import SPEED_STEPS
from megads.storage.open_file import open_binary
from megads.text.units import duration

SUBMITTED = "submitted.yaml"  # a job was handed to a scheduler
FRESH_S = 60.0  # since the last heartbeat, which a run rewrites every second
STARTING_S = 900.0  # since the last word of a start that has no heartbeat yet
TAIL = 1 << 16  # bytes read from the end of a metrics file
MOST_TAIL = 1 << 22  # while no validation is found in less
_MOST_NUMBER = 1e18  # that a file may hold

RUNNING, STARTING, HUNG, LOST = "running", "starting", "hung", "lost"
DONE, STOPPED, FAILED, WAITING, BROKEN = "done", "stopped", "failed", "not started", "broken"


@dataclass(frozen=True)
class RunFacts:
    """One run as ``megads runs`` shows it. None: not known. Times in seconds, ``age_s`` since anything changed."""

    path: str
    state: str
    why: str = ""
    step: int = 0
    total: int | None = None
    loss: float | None = None
    valid_loss: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    age_s: float | None = None
    model: str = ""
    layout: str = ""
    lr: float | None = None  # peak
    optimizer: str = ""
    tokens: float | None = None  # trained on so far
    mfu_causal: float | None = None
    branch_of: str = ""  # run folder that it branched off; empty: none
    branch_at: int | None = None  # iteration of the checkpoint it began with


@dataclass(frozen=True)
class State:
    """Whether a run is running, why not, or in which phase."""

    name: str
    why: str = ""

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come of this start of the run."""
        return self.name in (DONE, STOPPED, FAILED)


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in ``folder``, by name; its own path when it is one itself.

    Raises:
        OSError: it cannot be listed.
    """
    if is_run(folder):
        return [folder]
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    return [path for name in names if is_run(path := folder / name)]


def is_run(folder: Path) -> bool:
    """Return whether a run was started or submitted in ``folder``."""
    return any(os.path.lexists(folder / name) for name in (CONFIG, SUBMITTED, METRICS, OUTCOME, HEARTBEAT))


def facts_of(folder: Path, now: float | None = None) -> RunFacts:
    """Return the facts in a run's folder; a broken one is reported as such.

    Args:
        folder: of the run.
        now: unix seconds; None: the present.
    """
    now = time.time() if now is None else now
    damage = Damage()
    try:
        os.listdir(folder)
        steps, validation = last_rows(folder / METRICS, damage)
        damaged = damage.text(folder / METRICS)
    except OSError as error:
        return RunFacts(str(folder), BROKEN, f"cannot be read: {error.strerror}")
    settings: dict[str, Any] = {}
    problem = ""
    try:
        settings = read_settings(folder)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        problem = f"{CONFIG} {getattr(error, 'strerror', None) or error}"
    step, state = steps[-1] if steps else {}, state_of(folder, settings, now)
    if not settings and state.name == LOST:
        problem = problem or f"no settings in {CONFIG}, {state.why}"
    state = State(BROKEN, problem) if problem else state
    if damaged:
        state = State(state.name, "; ".join(filter(None, (f"{METRICS}: {damaged}", state.why))))
    ends = [int(number(row, "iteration") or 0) for row in (step, validation)]
    reached = max([*ends, *(found.iteration for found in (read_outcome(folder), read_heartbeat(folder)) if found)])
    total = None if settings.get("train.evaluate_only") else number(settings, "train.train_iters")
    last, branch = last_change(folder), read_branch(folder)
    return RunFacts(
        path=str(folder),
        state=state.name,
        why=state.why,
        step=reached,
        total=int(total) if total and total > 0 else None,
        loss=number(with_means(step), "lm_loss"),
        valid_loss=number(validation, "valid_loss"),
        tokens_per_s=_median(steps, "tokens_per_s"),
        mfu=_median(steps, "mfu"),
        mfu_causal=_median(steps, "mfu_causal"),
        age_s=max(0.0, now - last) if last else None,
        model=_model(settings),
        layout=_layout(settings),
        lr=number(settings, "optim.lr"),
        optimizer=str(settings.get("optim.optimizer") or ""),
        tokens=number(step, "consumed_tokens"),
        branch_of=branch.of if branch else "",
        branch_at=branch.iteration if branch else None,
    )


def state_of(folder: Path, settings: Mapping[str, Any], now: float) -> State:
    """Return whether the run in ``folder`` is running, from what it left there."""
    outcome = read_outcome(folder)
    if outcome is not None:
        return _ended(outcome)
    beat, beaten = read_heartbeat(folder), changed_at(folder / HEARTBEAT)
    said = changed_at(folder / LOG_FILE)
    if beat is not None:
        # The clocks of two hosts need not agree; either of them may show that it is fresh.
        quiet = min(abs(now - beat.time), abs(now - beaten) if beaten else float("inf"))
        if quiet < FRESH_S:
            return _alive(beat, settings, now)
        if said and said > beat.time and now - said < STARTING_S:
            return State(STARTING, "a new start of it")
        if os.path.lexists(folder / OUTCOME):
            return State(BROKEN, f"{OUTCOME} cannot be read")
        return State(LOST, f"in {beat.phase}; no heartbeat of rank 0 on {beat.host} for {duration(quiet)}")
    if (folder / OUTCOME).exists():
        return State(BROKEN, f"{OUTCOME} cannot be read")
    if not (folder / CONFIG).exists() and not (folder / METRICS).exists():
        return State(WAITING, "submitted; its job has not started")
    if said and now - said < STARTING_S:
        return State(STARTING)
    if (folder / METRICS).exists():
        return State(LOST, "no heartbeat and no outcome")
    return State(WAITING, "prepared, but no rank started")


def _ended(outcome: Outcome) -> State:
    if outcome.exit_code == EXIT_DONE:
        return State(DONE)
    name = STOPPED if outcome.exit_code == EXIT_STOPPED else FAILED
    lines = outcome.message.splitlines() or [""]
    return State(name, lines[0] if name == STOPPED else f"{outcome.kind}: {lines[-1]}".removeprefix(": "))


def _alive(beat: Heartbeat, settings: Mapping[str, Any], now: float) -> State:
    """Distinguish a run that progresses from one that has a heartbeat but no progress for longer than allowed."""
    timeout = number(settings, "launch.timeout_s")
    limit = 2 * max(600.0 if timeout is None else timeout, 3 * beat.save_s)
    stands = beat.time - beat.since
    if beat.phase != "end" and stands > limit:
        return State(HUNG, f"in {beat.phase} for {duration(stands)}")
    return State(RUNNING, f"in {beat.phase}" + (f" for {duration(stands)}" if stands > 10 else ""))


def last_rows(path: Path, damage: Damage | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the last steps of a metrics file, and that of the last validation, empty where there is none.

    Args:
        path: of the file.
        damage: takes rows of its last :data:`TAIL` bytes that differ from their checksums.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return [], {}
    with open_binary(path) as file:
        offset = file.seek(max(0, size - TAIL))
        offset += len(file.readline()) if offset else 0
        rows = [row for row in parse_rows(file.read(), damage or Damage(), offset) if "iteration" in row]
        steps = [row for row in rows if "lm_loss" in row][-SPEED_STEPS:]
        validation: dict[str, Any] = next((row for row in reversed(rows) if "valid_loss" in row), {})
        if offset and not (steps and validation):
            # Only the lines that matter: a few of many thousands.
            file.seek(max(0, size - MOST_TAIL))
            data = file.read(MOST_TAIL)
            validation = validation or _last(data, b'"valid_loss"')
            steps = steps or [row for row in [_last(data, b'"lm_loss"')] if row]
    return steps, validation


def _last(data: bytes, key: bytes) -> dict[str, Any]:
    """Return the last whole row with a key."""
    place = data.rfind(key)
    while place >= 0:
        begin, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
        rows = parse_rows(data[begin : end if end >= 0 else len(data)], Damage())
        if rows and "iteration" in rows[0]:
            return rows[0]
        place = data.rfind(key, 0, begin)
    return {}


def last_change(folder: Path) -> float:
    """Return when a run last wrote something, in unix seconds; 0 when it never did."""
    return max(changed_at(folder / name) for name in (METRICS, HEARTBEAT, OUTCOME, LOG_FILE, CONFIG, SUBMITTED))


def changed_at(path: Path) -> float:
    """Return when a file was last changed, in unix seconds; 0 when it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _median(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [value for row in rows if (value := number(row, key)) is not None]
    return statistics.median(values) if values else None


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number of a row or of settings, None where there is something else."""
    value = row.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_NUMBER
    return float(value) if usable and value is not None else None


def _model(settings: Mapping[str, Any]) -> str:
    family, layers, hidden = (settings.get(f"model.{key}") for key in ("family", "num_layers", "hidden_size"))
    return f"{family!s:.20} {layers!s:.9}x{hidden!s:.9}" if layers and hidden else ""


def _layout(settings: Mapping[str, Any]) -> str:
    names = {"tensor": "TP", "pipeline": "PP", "sequence": "SP", "data": "DP"}
    degrees = [(short, settings.get(f"parallel.{key}")) for key, short in names.items()]
    parts = [f"{short}{degree}" for short, degree in degrees if isinstance(degree, int) and 1 < degree < 10**9]
    zero = settings.get("parallel.zero_stage")
    return " ".join([*parts, *([f"Z{zero!s:.2}"] if zero else [])]) if any(degree for _, degree in degrees) else ""
