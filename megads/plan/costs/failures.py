"""What failures of hosts cost a long run, and how often it should save. Closed formulas, no torch.

Failures come at random, with the same chance in every second: of a run that fails every ``mtbf_s`` seconds on average,
the chance that ``t`` seconds pass without one is ``exp(-t / mtbf_s)``. After a failure the run needs ``restart_s``
seconds, in which the next one may come as well, and repeats what no complete checkpoint has. The formulas are exact for
this model, that of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006,
also for saves in the background, which count once they are written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from megads.errors import ConfigError

HOPELESS = 30.0
"""Work between two checkpoints, in average times between failures: with more (1e13 failures each) no run ends."""


@dataclass(frozen=True)
class Failures:
    """How often a run fails, and how long it takes until it computes again.

    Attributes:
        mtbf_s: seconds between failures of the whole run; ``inf``: it never fails.
        restart_s: from a failure to the first step after it.
    """

    mtbf_s: float = math.inf
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0 or not 0 <= self.restart_s < math.inf:
            raise ConfigError(
                f"failures every {self.mtbf_s:g} s and restarts of {self.restart_s:g} s: the first must be above 0, "
                "the second a number of seconds"
            )


@dataclass(frozen=True)
class SaveTimes:
    """How long a save takes.

    Attributes:
        pause_s: in which training waits.
        lag_s: from then on until the checkpoint is complete, while training continues.
    """

    pause_s: float
    lag_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.pause_s < math.inf or not 0 <= self.lag_s < math.inf:
            raise ConfigError(
                f"saves that pause for {self.pause_s:g} s and take {self.lag_s:g} s more; each must be 0 or more"
            )


def run_mtbf_s(host_mtbf_hours: float, hosts: int) -> float:
    """Return the seconds between failures of a run that any of its hosts ends; of hosts that never fail ``inf``."""
    return host_mtbf_hours * 3600 / hosts


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between saves by Young's formula of 1974; good where saves are short."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's estimate of :func:`best_interval_s`; within 0.2 % of its cost where saves take less than 2 MTBF."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young_interval_s(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between saves for which a run that waits for its saves ends first.

    With x = interval / MTBF and c = save / MTBF, the time per work ``(exp(x + c) - 1) / x`` is least where
    ``x + c + log(1 - x) = 0``.
    """
    if mtbf_s == math.inf:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if middle + save_s / mtbf_s + math.log1p(-middle) > 0:
            low = middle
        else:
            high = middle
    return low * mtbf_s


def expected_s(work_s: float, interval_s: float, start_s: float, saves: SaveTimes, failures: Failures) -> float:
    """Return the seconds that a run takes on average, from its start to its last checkpoint.

    Args:
        work_s: of training without saves and failures.
        interval_s: of training between two saves; the last one may be shorter. ``inf``: one save, at the end.
        start_s: from the start to the first step.

    Raises:
        ConfigError: failures come so often that the run would not end.
    """
    if not work_s > 0 or not interval_s > 0:
        raise ConfigError(f"{work_s:g} s of work, saved every {interval_s:g} s: both must be above 0")
    count, last_s = 1, work_s
    if interval_s < work_s:
        count = math.ceil(work_s / interval_s * (1 - 1e-12))
        last_s = work_s - (count - 1) * interval_s
    first_s = interval_s if count > 1 else last_s
    found = _from_start(start_s, failures) + _again(first_s + saves.pause_s + saves.lag_s, failures)
    if count > 1:
        found += (count - 2) * _next_save(interval_s, saves, failures) + _next_save(last_s, saves, failures)
    return found


def _from_start(start_s: float, failures: Failures) -> float:
    """Return the expected seconds until training begins for the first time."""
    if failures.mtbf_s == math.inf:
        return start_s
    fails = -math.expm1(-start_s / failures.mtbf_s)
    return fails * (failures.mtbf_s + _restarted(failures))


def _restarted(failures: Failures) -> float:
    """Return the expected seconds from a failure to training, with the failures in between."""
    return failures.mtbf_s * _failures_before(failures.restart_s, failures)


def _again(seconds: float, failures: Failures) -> float:
    """Return the expected seconds until so many pass without a failure; each failure begins all of them again."""
    if failures.mtbf_s == math.inf:
        return seconds
    restarts = 1 + _failures_before(failures.restart_s, failures)
    return failures.mtbf_s * _failures_before(seconds, failures) * restarts


def _next_save(interval_s: float, saves: SaveTimes, failures: Failures) -> float:
    """Return the expected seconds from the moment that a checkpoint is complete to that of the next one.

    Training is ``lag_s`` ahead then, and a save waits until the one before it is complete. After a failure the whole
    interval is repeated.
    """
    ahead = interval_s + saves.pause_s + max(0.0, saves.lag_s - interval_s)
    if failures.mtbf_s == math.inf:
        return ahead
    fails = -math.expm1(-ahead / failures.mtbf_s)
    whole = _again(interval_s + saves.pause_s + saves.lag_s, failures)
    return fails * (failures.mtbf_s + _restarted(failures) + whole)


def _failures_before(seconds: float, failures: Failures) -> float:
    """Return how many failures come on average before so many seconds pass without one."""
    if seconds / failures.mtbf_s > HOPELESS:
        raise ConfigError(
            f"the run fails every {failures.mtbf_s:.3g} s on average and needs {seconds:.3g} s between two checkpoints "
            "or for a restart: it would not end; use fewer hosts, a smaller SAVE_INTERVAL, or faster storage"
        )
    return math.expm1(seconds / failures.mtbf_s)
