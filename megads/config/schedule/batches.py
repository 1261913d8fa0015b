"""How many samples each step takes, and which steps' data is skipped: arithmetic on counts of samples.

Every part of a run that turns steps into samples or back asks :class:`BatchSchedule`; nobody
multiplies ``train_iters`` with ``global_batch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from megads.config.rules.advice import divisors, nearest
from megads.config.schema import RunConfig
from megads.errors import ConfigError

RAMP_FORM = "START INCREMENT SAMPLES, e.g. 16 16 5_859_375"
SKIP_FORM = "FIRST-LAST, e.g. 101-200 301-400"

MOST_SIZES = 10_000
"""Of batches on the way; a ramp with more is a slip of the finger."""

LARGEST_RAMP = 10**15
"""Samples; up to here floats count them one by one."""


class Phase(NamedTuple):
    """Steps of equal size, one after another."""

    batch: int  # samples of a step
    steps: int | None  # how many; None: the last phase has no end
    consumed: int  # samples before the first of them


@dataclass(frozen=True)
class BatchSchedule:
    """The global batch as a function of the samples consumed (Megatron-LM's ``--rampup-batch-size``).

    Over the first ``ramp_samples`` samples the batch grows from ``start`` to ``final`` in
    steps of ``increment``, each size for an equal share of the samples. The size is looked
    up at the start of a step, so a step may reach into the next size's share.
    """

    final: int  # samples of a step after the ramp
    start: int = 0  # samples of the first step; ``final`` without a ramp
    increment: int = 0  # samples that are added each time
    ramp_samples: int = 0  # how long the ramp is

    @staticmethod
    def parse(text: str, final: int) -> BatchSchedule:
        """Return the schedule of a ``RAMPUP_BATCH_SIZE``, empty for none, and a ``GLOBAL_BATCH``.

        Raises:
            ConfigError: the text is no ramp, or does not end at ``final``.
        """
        words = text.replace(",", " ").split()
        if not words:
            return BatchSchedule(final)
        if len(words) != 3 or not all(re.fullmatch(r"\d+(_\d+)*", word) for word in words):
            raise ConfigError(f"RAMPUP_BATCH_SIZE={text!r} is not {RAMP_FORM}")
        start, increment, samples = map(int, words)
        if samples > LARGEST_RAMP:
            raise ConfigError(f"RAMPUP_BATCH_SIZE={text!r}: SAMPLES={samples} must be at most {LARGEST_RAMP}")
        if not 0 < start <= final:
            raise ConfigError(
                f"RAMPUP_BATCH_SIZE={text!r}: START={start} must be at least 1 and at most GLOBAL_BATCH={final}"
            )
        if start == final:
            return BatchSchedule(final)
        if not increment or not samples:
            raise ConfigError(f"RAMPUP_BATCH_SIZE={text!r}: INCREMENT and SAMPLES must be at least 1")
        if (final - start) % increment or (final - start) // increment > MOST_SIZES:
            raise ConfigError(
                f"RAMPUP_BATCH_SIZE={text!r}: from {start} to GLOBAL_BATCH={final} are not at most "
                f"{MOST_SIZES} steps of INCREMENT={increment}; use {_whole_steps(start, final, increment, samples)}"
            )
        return BatchSchedule(final, start, increment, samples)

    @staticmethod
    def of(run: RunConfig) -> BatchSchedule:
        """Return the schedule of a run whose ``global_batch`` is known."""
        if run.data.stage_table:
            from megads.config.data_stages.batches import stage_batches  # which imports this module

            if (staged := stage_batches(run)) is not None:
                return staged
        return BatchSchedule.parse(run.train.rampup_batch_size, run.train.global_batch)

    @staticmethod
    def of_settings(train: dict[str, Any]) -> BatchSchedule:
        """Return the schedule of a ``train`` section as a checkpoint keeps it."""
        return BatchSchedule.parse(str(train.get("rampup_batch_size") or ""), int(train["global_batch"]))

    @property
    def is_ramp(self) -> bool:
        """Whether the batch changes."""
        return bool(self.increment)

    @property
    def sizes(self) -> range:
        """Every size on the way, the final one included."""
        return range(self.start, self.final + 1, self.increment) if self.is_ramp else range(self.final, self.final + 1)

    def batch_at(self, consumed: int) -> int:
        """Return the samples of the step that begins when ``consumed`` samples are used."""
        if not self.is_ramp or consumed > self.ramp_samples:
            return self.final
        # In floats and in this order, as upstream: the borders are then the same samples.
        level = int(consumed / (self.ramp_samples / self._increments))
        return min(self.final, self.start + level * self.increment)

    def phases(self, consumed: int = 0) -> Iterator[Phase]:
        """Yield the phases of a run that resumes at ``consumed`` samples; the last one has no end."""
        while (batch := self.batch_at(consumed)) < self.final:
            steps = -(-(self._border_above(batch) - consumed) // batch)
            yield Phase(batch, steps, consumed)
            consumed += steps * batch
        yield Phase(self.final, None, consumed)

    def after(self, consumed: int, steps: int) -> int:
        """Return the samples consumed when ``steps`` more steps are done."""
        for phase in self.phases(consumed):
            if phase.steps is None or steps <= phase.steps:
                return phase.consumed + steps * phase.batch
            steps -= phase.steps
        raise AssertionError("the last phase has no end")

    def samples_after(self, iterations: int) -> int:
        """Return the samples that the first ``iterations`` steps of a run take."""
        return self.after(0, iterations)

    def iterations_within(self, samples: int, consumed: int = 0) -> int:
        """Return the largest number of whole steps from sample ``consumed`` on that end at ``samples`` or before."""
        iterations = 0
        for phase in self.phases(consumed):
            fitting = max(0, samples - phase.consumed) // phase.batch
            if phase.steps is None or fitting < phase.steps:
                return iterations + fitting
            iterations += phase.steps
        raise AssertionError("the last phase has no end")

    @property
    def ramp_iterations(self) -> int:
        """The steps with less than the final batch."""
        return sum(phase.steps or 0 for phase in self.phases())

    @property
    def _increments(self) -> int:
        return (self.final - self.start) // self.increment

    def _border_above(self, batch: int) -> int:
        """Return the fewest consumed samples at which the batch is larger than ``batch``."""
        level = (batch - self.start) // self.increment + 1
        border = -(-level * self.ramp_samples // self._increments)
        # Rounding in floats moves a border by one sample at most.
        return next(c for c in range(max(0, border - 1), border + 3) if self.batch_at(c) > batch)


def _whole_steps(start: int, final: int, increment: int, samples: int) -> str:
    fitting = [each for each in divisors(final - start) if (final - start) // each <= MOST_SIZES]
    words = [f"RAMPUP_BATCH_SIZE={start},{each},{samples}" for each in nearest(increment, fitting)[:1]]
    lower = start + (final - start) // increment * increment
    if (final - start) % increment:
        words.append(f"GLOBAL_BATCH={lower if lower > start else start + increment}")
    return " or ".join(words)


def samples_at_end(run: RunConfig) -> int:
    """Return the samples that a derived run has consumed at its end, also where it resumed with other batches."""
    return BatchSchedule.of(run).samples_after(run.train.train_iters) + run.train.samples_offset


def planned_samples(run: RunConfig) -> int:
    """Return the samples that sample order, blend and schedule of a derived run are made for, at least its own.

    With ``PLANNED_ITERS`` a run may end before them, and a later command trains on.
    """
    return max(run.train.planned_samples, samples_at_end(run))


@dataclass(frozen=True)
class SkipRanges:
    """Iterations, counted from 1, whose data is skipped; both ends are meant."""

    ranges: tuple[tuple[int, int], ...] = ()  # sorted, apart from each other

    @staticmethod
    def parse(text: str) -> SkipRanges:
        """Return the ranges of a ``SKIP_TRAIN_ITERATION_RANGE``; what overlaps is joined.

        Raises:
            ConfigError: the text is no list of ranges.
        """
        found: list[tuple[int, int]] = []
        for word in text.replace(",", " ").split():
            match = re.fullmatch(r"(\d+(?:_\d+)*)-(\d+(?:_\d+)*)", word)
            if match is None:
                raise ConfigError(f"SKIP_TRAIN_ITERATION_RANGE={text!r}: {word!r} is not {SKIP_FORM}")
            first, last = int(match[1]), int(match[2])
            if not 0 < first <= last:
                raise ConfigError(
                    f"SKIP_TRAIN_ITERATION_RANGE={text!r}: {word!r} must run from 1 or later to where it ends"
                )
            found.append((first, last))
        joined: list[tuple[int, int]] = []
        for first, last in sorted(found):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return SkipRanges(tuple(joined))

    def last_of(self, iteration: int) -> int:
        """Return the end of the range that ``iteration`` is in, 0 if it is in none."""
        return next((last for first, last in self.ranges if first <= iteration <= last), 0)

    def count_until(self, iterations: int) -> int:
        """Return how many of the first ``iterations`` are skipped."""
        return sum(max(0, min(last, iterations) - first + 1) for first, last in self.ranges)

    def samples_left(self, sizes: BatchSchedule, iteration: int, consumed: int, iterations: int) -> int:
        """Return the samples that a run trains on between ``iteration`` and ``iterations``.

        Args:
            iteration: done.
            consumed: samples used until then.
        """
        left = 0
        for first, last in (*self.ranges, (iterations + 1, iterations + 1)):
            first, last = max(iteration + 1, min(first, iterations + 1)), min(last, iterations)
            before = sizes.after(consumed, first - 1 - iteration)
            left += before - consumed
            consumed, iteration = sizes.after(before, max(0, last - first + 1)), max(last, first - 1)
        return left

    def __str__(self) -> str:
        return " ".join(f"{first}-{last}" for first, last in self.ranges)
