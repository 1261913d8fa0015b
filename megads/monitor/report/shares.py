"""What the allocated time of a start was spent on, in parts that add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megads.monitor.run_state.attempts import Attempt

TRAINING, LOST, START, UNKNOWN = "training", "lost steps", "start-up", "not recorded"
# Part -> phases of a rank (megads/train/fault/watchdog.py) that it adds up; a step is split between two parts.
PHASES = {START: ("set-up",), "validation": ("validation",), "saves": ("save",), "rollbacks": ("rollback",)}
OTHER, WAIT = "launch and exit", "waits between starts"
PARTS = (TRAINING, LOST, START, "validation", "saves", "rollbacks", OTHER, WAIT, UNKNOWN)
"""In the order in which they are shown."""


@dataclass(frozen=True)
class Link:
    """One start of a run, with what its time was spent on.

    Attributes:
        attempt: its row of ``attempts.jsonl``.
        ended: unix seconds; the present while it runs.
        kept: the last of its steps that no later start repeated.
        waited_s: since the end of the start before, in the same job: the hosts were allocated.
        queued_s: since the end of the start before, which was in another job.
        seconds: by part of :data:`PARTS`; their sum is the time from start to end, and ``waited_s``.
    """

    attempt: Attempt
    ended: float
    kept: int
    waited_s: float = 0.0
    queued_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def hosts(self) -> int:
        """Number of hosts; one where none was recorded."""
        return max(1, len(self.attempt.hosts))

    @property
    def allocated_s(self) -> float:
        """Seconds for which its hosts were allocated, as far as the run knows."""
        return self.ended - self.attempt.started + self.waited_s

    @property
    def lost_steps(self) -> int:
        """Steps that a later start repeated."""
        return max(0, self.attempt.reached - max(self.kept, self.attempt.began))


def links_of(attempts: Sequence[Attempt], now: float, step_s: Mapping[int, float] | None = None) -> list[Link]:
    """Return the starts of a run with where their time went.

    Args:
        attempts: in the order in which they began.
        now: unix seconds, for one that still runs.
        step_s: iteration -> seconds, for starts that recorded no phases (earlier versions).
    """
    links: list[Link] = []
    for number, attempt in enumerate(attempts):
        kept = min([attempt.reached, *(later.began for later in attempts[number + 1 :])])
        ended = max(attempt.ended or now, attempt.started)
        waited = queued = 0.0
        if links:
            gap = max(0.0, attempt.started - links[-1].ended)
            # Without a scheduler nobody allocates hosts; the restarts of one command are one job.
            is_same = attempt.job == attempts[number - 1].job and bool(attempt.job or attempt.attempt)
            waited, queued = (gap, 0.0) if is_same else (0.0, gap)
        seconds = _seconds(attempt, ended - attempt.started, kept, step_s or {})
        if waited:
            seconds[WAIT] = waited
        links.append(Link(attempt, ended, kept, waited, queued, seconds))
    return links


def _seconds(attempt: Attempt, wall_s: float, kept: int, step_s: Mapping[int, float]) -> dict[str, float]:
    """Return the parts of ``wall_s``."""
    spent = dict(attempt.spent)
    if not spent:
        trained = sum(step_s.get(each, 0.0) for each in range(attempt.began + 1, kept + 1)) if step_s else 0.0
        trained = min(trained, wall_s)
        return _positive({TRAINING: trained, UNKNOWN: wall_s - trained})
    steps = attempt.reached - attempt.began
    share = min(1.0, max(0.0, (kept - attempt.began) / steps)) if steps > 0 else 0.0
    stepped = spent.get("step", 0.0)
    parts = {TRAINING: stepped * share, LOST: stepped * (1.0 - share)}
    parts |= {part: sum(spent.get(name, 0.0) for name in names) for part, names in PHASES.items()}
    # The heartbeat of a rank that was stopped, or whose clock was set, may have more than the launcher measured.
    known = sum(parts.values())
    if known > wall_s:
        parts = {name: value * wall_s / known for name, value in parts.items()}
    return _positive({**parts, OTHER: wall_s - min(known, wall_s)})


def _positive(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in parts.items() if value > 0}


def host_seconds(links: Sequence[Link]) -> dict[str, float]:
    """Return seconds times hosts of every part, in the order of :data:`PARTS`."""
    return _positive({part: sum(link.hosts * link.seconds.get(part, 0.0) for link in links) for part in PARTS})


def efficiency(links: Sequence[Link]) -> float | None:
    """Return the share of the allocated host time that trained, None where none was allocated.

    A start that recorded nothing of its time counts as not trained.
    """
    parts = host_seconds(links)
    whole = sum(parts.values())
    return parts.get(TRAINING, 0.0) / whole if whole else None
