"""What a whole run takes besides its steps: saves, validations, failures, jobs, energy. Arithmetic, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.plan.costs.failures import Failures, SaveTimes, best_interval_s, expected_s, run_mtbf_s
from megads.plan.costs.saves import saves_of, saves_until

FORWARD_SHARE = 1 / 3
"""Of a step's time that a validation of as many samples takes: a backward pass takes two forward passes."""

DEVICE_TO_HOST_GB_S = 20.0
"""Per rank, of the copy that a save in the background writes later: PCIe 4 with 16 lanes, less what protocols take."""

STOP_SAVES, TEARDOWN_S, TEARDOWN_PER_RANK_S = 2.0, 10.0, 0.005
"""What a run keeps free before its job ends, see ``megads.train.fault.stop``."""

SECONDS_PER_HOUR, HOURS_PER_DAY, GRAMS_PER_KG, WATTS_PER_KW = 3600, 24, 1000, 1000


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be done, and how fast it goes.

    Attributes:
        step_s: a step, without saves and validations.
        save_bytes: of a checkpoint.
        save_interval_steps: 0: one checkpoint, at the end.
        kept_saves: checkpoints that stay.
        validations: of ``validation_s`` seconds each.
    """

    steps: int
    step_s: float
    hosts: int
    ranks: int
    save_bytes: int = 0
    save_interval_steps: int = 0
    is_saved_in_background: bool = False
    kept_saves: int = 1
    validations: int = 0
    validation_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a place says about long runs; 0: not known, and not counted.

    Attributes:
        start_s: from the start of a job to its first step.
        restart_s: from a failure to the next step, with the time in which it is noticed; 0: as ``start_s``.
        storage_gb_s: at which all hosts together write a checkpoint, in 10^9 bytes.
        host_mtbf_hours: hours between failures of one host.
        walltime_hours: of a job.
        host_watts: that a host draws while it trains.
        pue: power of the whole building by that of its hosts.
        grams_per_kwh: of CO2.
    """

    start_s: float = 0.0
    restart_s: float = 0.0
    storage_gb_s: float = 0.0
    host_mtbf_hours: float = 0.0
    walltime_hours: float = 0.0
    host_watts: float = 0.0
    pue: float = 1.0
    grams_per_kwh: float = 0.0

    @property
    def unknown(self) -> tuple[str, ...]:
        """What a campaign in this place does not count."""
        names = ("start_s", "storage_gb_s", "host_mtbf_hours", "walltime_hours", "host_watts", "grams_per_kwh")
        return tuple(name for name in names if not getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A whole run. Times add up to ``total_s``, which has no time in queues."""

    steps: int
    hosts: int
    step_s: float  # of all steps, once each
    validation_s: float
    save_s: float  # in which training waits for saves
    start_s: float  # of all jobs
    end_s: float  # last saves of all jobs but the last one
    lost_s: float  # by failures: what is repeated, and restarts
    failures: float
    jobs: int
    saves: int
    save_bytes: int
    written_bytes: int
    kept_bytes: int
    best_save_interval_steps: int  # for which the run would end first; 0: one save, at the end
    kwh: float | None  # None: the watts are not known
    co2_kg: float | None
    unknown: tuple[str, ...]  # of the place, see Terms

    @property
    def total_s(self) -> float:
        """Seconds in jobs."""
        return self.step_s + self.validation_s + self.save_s + self.start_s + self.end_s + self.lost_s

    @property
    def days(self) -> float:
        """The same in days."""
        return self.total_s / SECONDS_PER_HOUR / HOURS_PER_DAY

    @property
    def node_hours(self) -> float:
        """Hours of all hosts."""
        return self.hosts * self.total_s / SECONDS_PER_HOUR

    @property
    def efficiency(self) -> float:
        """Share of the time in which steps are done that count."""
        return self.step_s / self.total_s


def steps_of(tokens: int, tokens_per_step: int) -> int:
    """Return the steps of a token budget; the last one may exceed it."""
    if tokens < 1 or tokens_per_step < 1:
        raise ConfigError(f"{tokens} tokens in steps of {tokens_per_step}; both must be 1 or more")
    return -(-tokens // tokens_per_step)


def work_of(run: RunConfig, hosts: int, ranks: int, step_s: float) -> Work:
    """Return the work of a derived run whose steps take ``step_s``."""
    saves, train = saves_of(run), run.train
    validations = 0
    if train.eval_interval and train.eval_iters:
        validations = train.train_iters // train.eval_interval + train.eval_at_start
    return Work(
        steps=train.train_iters,
        step_s=step_s,
        hosts=hosts,
        ranks=ranks,
        save_bytes=saves.each,
        save_interval_steps=run.checkpoint.save_interval,
        is_saved_in_background=run.checkpoint.in_background,
        kept_saves=saves.kept,
        validations=validations,
        validation_s=train.eval_iters * step_s * FORWARD_SHARE,
    )


def save_times(work: Work, terms: Terms) -> SaveTimes:
    """Return how long a save takes: all of it, or the copy to host memory and then the writing."""
    if not terms.storage_gb_s:
        return SaveTimes(0.0)
    write_s = work.save_bytes / (terms.storage_gb_s * 1e9)
    if not work.is_saved_in_background:
        return SaveTimes(write_s)
    return SaveTimes(min(write_s, work.save_bytes / work.ranks / (DEVICE_TO_HOST_GB_S * 1e9)), write_s)


def failures_of(work: Work, terms: Terms) -> Failures:
    """Return how often the run fails: when any of its hosts does."""
    mtbf_s = run_mtbf_s(terms.host_mtbf_hours, work.hosts) if terms.host_mtbf_hours else math.inf
    return Failures(mtbf_s, terms.restart_s or terms.start_s)


def campaign(work: Work, terms: Terms) -> Campaign:
    """Return what a run takes.

    Failures are counted by :mod:`megads.plan.costs.failures`; they do not end a job. A job begins with the start-up,
    and ends as early as the run itself stops before the end of its job, after a save.

    Raises:
        ConfigError: an impossible number; a job without time for a step; failures that let no run end.
    """
    _check(work, terms)
    saves, failures = save_times(work, terms), failures_of(work, terms)
    validation_s = work.validations * work.validation_s
    step_s = work.step_s + validation_s / work.steps
    work_s, interval_s = work.steps * step_s, (work.save_interval_steps or work.steps) * step_s
    without = expected_s(work_s, interval_s, terms.start_s, saves, Failures())
    expected = expected_s(work_s, interval_s, terms.start_s, saves, failures)
    jobs, end_s = _jobs(expected - terms.start_s, step_s, saves, work, terms)
    total_s = expected + (jobs - 1) * (terms.start_s + end_s)
    kwh = work.hosts * total_s / SECONDS_PER_HOUR * terms.host_watts / WATTS_PER_KW * terms.pue
    written = saves_until(work.steps, work.save_interval_steps, work.steps) + jobs - 1
    return Campaign(
        steps=work.steps,
        hosts=work.hosts,
        step_s=work.steps * work.step_s,
        validation_s=validation_s,
        save_s=without - work_s - terms.start_s,
        start_s=jobs * terms.start_s,
        end_s=(jobs - 1) * end_s,
        lost_s=expected - without,
        failures=expected / failures.mtbf_s,
        jobs=jobs,
        saves=written,
        save_bytes=work.save_bytes,
        written_bytes=written * work.save_bytes,
        kept_bytes=work.kept_saves * work.save_bytes,
        best_save_interval_steps=best_save_interval_steps(work, terms),
        kwh=kwh if terms.host_watts else None,
        co2_kg=kwh * terms.grams_per_kwh / GRAMS_PER_KG if terms.host_watts and terms.grams_per_kwh else None,
        unknown=terms.unknown,
    )


def best_save_interval_steps(work: Work, terms: Terms) -> int:
    """Return the steps between saves for which the run ends first; 0: nothing is known of failures, or of the storage.

    By the optimum of a run that waits for the pause only, at least the time that a save is written.
    """
    saves, failures = save_times(work, terms), failures_of(work, terms)
    if failures.mtbf_s == math.inf or not saves.pause_s:
        return 0
    interval_s = max(best_interval_s(saves.pause_s, failures.mtbf_s), saves.lag_s)
    step_s = work.step_s + work.validations * work.validation_s / work.steps
    return max(1, min(work.steps, round(interval_s / step_s)))


def _jobs(useful_s: float, step_s: float, saves: SaveTimes, work: Work, terms: Terms) -> tuple[int, float]:
    """Return the jobs for so many seconds of training, and the seconds that the end of each but the last takes."""
    if not terms.walltime_hours:
        return 1, 0.0
    write_s = saves.lag_s or saves.pause_s
    teardown_s = TEARDOWN_S + TEARDOWN_PER_RANK_S * work.ranks
    room_s = terms.walltime_hours * SECONDS_PER_HOUR - terms.start_s
    margin_s = STOP_SAVES * write_s + teardown_s + step_s
    if room_s <= margin_s + step_s:
        raise ConfigError(
            f"a job of {terms.walltime_hours:g} h: {terms.start_s:.0f} s to start and {margin_s:.0f} s kept free for "
            f"the last save leave no time for a step of {step_s:.3g} s; use a queue with a longer limit"
        )
    more_s = max(0.0, useful_s - room_s)
    return 1 + math.ceil(more_s / (room_s - margin_s)), write_s + teardown_s


def _check(work: Work, terms: Terms) -> None:
    numbers = {"steps": work.steps, "step_s": work.step_s, "hosts": work.hosts, "ranks": work.ranks}
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"a campaign with {name} {value:g}; it must be above 0")
    for name, value in {**vars(terms), "save_bytes": work.save_bytes, "validation_s": work.validation_s}.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"a campaign with {name} {value:g}; it must be 0 or more")
    if terms.pue < 1:
        raise ConfigError(f"a campaign with pue {terms.pue:g}; a building draws at least what its hosts do: 1 or more")
