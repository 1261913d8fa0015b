"""What a run folder says about its campaign: every start, its time, losses, events, energy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megads.config.run_files import METRICS
from megads.errors import EXIT_DONE, EXIT_STOPPED, ConfigError
from megads.monitor.columns import Column, Columns, read_columns
from megads.monitor.plots.panels import marks_of
from megads.monitor.plots.source import settings_of
from megads.monitor.report.shares import Link, efficiency, host_seconds, links_of
from megads.monitor.run_state.attempts import Attempt, read_attempts
from megads.monitor.run_state.runs import RunFacts, facts_of, is_run
from megads.text.plural import plural

KEYS = {
    *("lm_loss", "valid_loss", "step_time_s", "data_wait_s", "consumed_tokens", "tokens_per_s", "mfu"),
    *("energy_kwh", "energy_estimated_kwh", "co2_kg", "rolled_back_to", "straggler_rank"),
    *("skipped_iterations", "nan_iterations", "rejected_iterations"),
}
_MARKED = 3  # iterations named of each kind of mark


@dataclass(frozen=True)
class Event:
    """Something that a reader of the report wants to know of: when (unix seconds, 0: unknown), at which step, what."""

    at: float
    step: int
    text: str
    is_bad: bool = False


@dataclass(frozen=True)
class Campaign:
    """One run over all of its jobs."""

    path: Path
    facts: RunFacts
    links: tuple[Link, ...]
    events: tuple[Event, ...]
    columns: Columns = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    bad_hosts: tuple[str, ...] = ()  # a line for each of its hosts that is known for failures

    @property
    def hosts(self) -> set[str]:
        """Short names of all hosts of all starts."""
        return {host.split(".")[0] for link in self.links for host in link.attempt.hosts}

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.path.absolute().name

    @property
    def jobs(self) -> int:
        """Number of jobs: of the scheduler, or calls of the command outside of one."""
        others = sum(not link.attempt.job and not link.attempt.attempt for link in self.links)
        return len({link.attempt.job for link in self.links if link.attempt.job}) + others

    @property
    def host_hours(self) -> float:
        """Allocated hosts times hours."""
        return sum(host_seconds(self.links).values()) / 3600

    @property
    def rank_hours(self) -> float:
        """Ranks times hours of allocation; a rank has one device."""
        return sum(max(1, link.attempt.num_ranks) * link.allocated_s for link in self.links) / 3600

    @property
    def queued_s(self) -> float:
        """Seconds between jobs, in which nothing was allocated."""
        return sum(link.queued_s for link in self.links)

    @property
    def efficiency(self) -> float | None:
        """Share of the allocated host time that trained."""
        return efficiency(self.links)

    def last(self, key: str) -> float | None:
        """Return the last finite value of a key of the rows."""
        column = self.columns[key].numbers() if key in self.columns else None
        return float(column.y[-1]) if column is not None and len(column.y) else None

    def best(self, key: str) -> tuple[float, int] | None:
        """Return the smallest finite value of a key and its iteration."""
        column = self.columns[key].numbers() if key in self.columns else None
        if column is None or not len(column.y):
            return None
        place = int(np.argmin(column.y))
        return float(column.y[place]), int(column.x[place])

    @property
    def data_stall(self) -> float | None:
        """Share of the steps' time that waited for data, of the rows there are."""
        if "data_wait_s" not in self.columns or "step_time_s" not in self.columns:
            return None
        whole = float(np.nansum(self.columns["step_time_s"].y))
        return float(np.nansum(self.columns["data_wait_s"].y)) / whole if whole > 0 else None


def read_campaign(folder: Path, now: float | None = None) -> Campaign:
    """Return what ``folder`` says of its run; the run may be running.

    Raises:
        ConfigError: there is no run, or its rows cannot be read.
    """
    now = time.time() if now is None else now
    if not folder.exists():
        raise ConfigError(f"{folder}: not found; `megads runs` lists what is in runs/")
    if not folder.is_dir() or not is_run(folder):
        raise ConfigError(f"{folder}: no run here; pass a run's folder, or a folder that holds runs")
    columns = _columns(folder / METRICS)
    attempts = read_attempts(folder, now)
    steps = columns.get("step_time_s", Column(np.zeros(0), np.zeros(0))).numbers()
    times = dict(zip(steps.x.astype(int).tolist(), steps.y.tolist(), strict=True))
    links = links_of(attempts, now, times)
    events = sorted([*_of_links(links), *_of_rows(columns)], key=lambda event: (event.step, event.at))
    return Campaign(folder, facts_of(folder, now), tuple(links), tuple(events), columns, settings_of(folder))


def _columns(path: Path) -> Columns:
    try:
        return read_columns(path, lambda key: key in KEYS)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _of_links(links: Sequence[Link]) -> list[Event]:
    events: list[Event] = []
    for number, link in enumerate(links):
        attempt, before = link.attempt, links[number - 1].attempt if number else None
        events.append(Event(attempt.started, attempt.began, started_text(attempt, before)))
        if text := ended_text(link):
            is_bad = attempt.exit_code not in (EXIT_DONE, EXIT_STOPPED)
            events.append(Event(link.ended, attempt.reached, text, is_bad))
        if attempt.excluded:
            hosts = ", ".join(attempt.excluded)
            events.append(Event(link.ended, attempt.reached, f"excluded {hosts}", is_bad=True))
    return events


def started_text(attempt: Attempt, before: Attempt | None) -> str:
    """Return ``job 7: 8 ranks on 2 hosts from step 40; was 4 ranks on 1 host``."""
    who = f"job {attempt.job}" if attempt.job else "start"
    who += f", restart {attempt.attempt}" if attempt.attempt else ""
    text = f"{who}: {where_text(attempt)}" + (f" from step {attempt.began}" if attempt.began else "")
    if before is None:
        return text
    changed = [f"was {where_text(before)}"] if where_text(attempt) != where_text(before) else []
    if attempt.layout != before.layout and before.layout:
        changed.append(f"layout {attempt.layout}, was {before.layout}")
    if attempt.grad_acc_steps != before.grad_acc_steps and before.grad_acc_steps:
        changed.append(f"accumulation {before.grad_acc_steps} -> {attempt.grad_acc_steps}")
    return "; ".join([text, *changed])


def where_text(attempt: Attempt) -> str:
    """Return ``8 ranks on 2 hosts``."""
    return f"{plural(attempt.num_ranks, 'rank')} on {plural(len(attempt.hosts), 'host')}"


def ended_text(link: Link) -> str:
    """Return how a start ended, empty while it runs."""
    attempt = link.attempt
    if not attempt.ended:
        return ""
    word = {EXIT_DONE: "done", EXIT_STOPPED: "stopped"}.get(attempt.exit_code, "failed")
    why = attempt.verdict or next(iter(attempt.message.splitlines()[-1:]), "")
    cause = f" ({attempt.cause})" if attempt.cause and word == "failed" else ""
    lost = f"; {plural(link.lost_steps, 'step')} repeated later" if link.lost_steps else ""
    return f"{word}{cause} after step {attempt.reached}" + (f": {why}" if why and word != "done" else "") + lost


def _of_rows(columns: Columns) -> list[Event]:
    events = []
    if "rolled_back_to" in columns:
        back = columns["rolled_back_to"].numbers()
        for step, to in zip(back.x.astype(int), back.y.astype(int), strict=True):
            events.append(Event(0.0, int(step), f"rolled back from step {step} to {to}", is_bad=True))
    for name, places in marks_of({key: each for key, each in columns.items() if key != "rolled_back_to"}).items():
        steps = places.astype(int).tolist()
        some = ", ".join(map(str, steps[:_MARKED])) + (" ..." if len(steps) > _MARKED else "")
        events.append(Event(0.0, steps[-1], f"{plural(len(steps), 'step')} {name}: {some}", is_bad=True))
    if "straggler_rank" in columns:
        ranks = columns["straggler_rank"].numbers().y.astype(int).tolist()
        if ranks:
            worst = max(set(ranks), key=ranks.count)
            found = f"straggler: rank {worst} in {ranks.count(worst)} of {plural(len(ranks), 'check')} with one"
            events.append(Event(0.0, int(columns["straggler_rank"].x[-1]), found))
    return events
