"""Learning rate and weight decay as pure functions of the samples seen; no torch.

Counting samples, and the shapes, follow Megatron-LM's optimizer schedule: the first step
of a warm-up uses its initial rate, a step beyond the decay uses the smallest one, and steps
that were skipped do not move the schedule. ``docs/schedules.md`` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from megads.config.data_stages.rates import LEFT as _LEFT
from megads.config.data_stages.rates import Piece, pieces_of, rate_at
from megads.config.data_stages.table import StageTable
from megads.config.schedule.batches import BatchSchedule, planned_samples
from megads.config.schema import RunConfig
from megads.config.settings.schedule import AS_WEIGHT_DECAY, ScheduleSettings

WSD = "wsd"
INFINITE = ("infinite-cosine", "infinite-inverse-square-root")
COOLING = (WSD, *INFINITE)
"""Styles with a part that cools."""

PARTS = ("warmup", "decay", "cooldown", "constant")
"""Of a schedule, each with a length of its own."""

COOLDOWN_OF = {WSD: 0.05, **dict.fromkeys(INFINITE, 0.65)}
"""The fraction of the decay that cools where nobody gives one."""

CONSTANT_OF_PEAK = 0.55
"""The constant rate of an infinite schedule as a part of its peak where nobody gives one."""

COUNTED = ("samples", "tokens", "iters")
UNITS = (*COUNTED, "frac")
"""In which a length may be given, the one that counts first where several are known."""


@dataclass(frozen=True)
class Rates:
    """What the schedule says of one step."""

    lr: float
    weight_decay: float


@dataclass(frozen=True)
class WeightDecay:
    """From ``start`` to ``end`` over ``samples``; constant is ``end``."""

    start: float = 0.0
    end: float = 0.0
    samples: float = 1
    style: str = "constant"  # "constant" | "linear" | "cosine"

    def at(self, samples: int) -> float:
        """Return the weight decay of the step that follows ``samples`` scheduled samples."""
        if self.style == "constant" or samples >= self.samples:
            return self.end
        done = samples / self.samples
        share = done if self.style == "linear" else (1 - math.cos(math.pi * done)) / 2
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Schedule:
    """Warm-up to ``max_lr``, then a decay to ``min_lr``; all lengths in samples."""

    max_lr: float  # the peak
    min_lr: float  # from the end of the decay on, unless the style is constant
    warmup_samples: float  # of the warm-up, from sample 0 on
    decay_samples: float  # sample at which the decay ends; the warm-up is part of it
    style: str  # see :data:`megads.config.settings.schedule.Style`
    init_lr: float = 0.0  # where the warm-up begins
    cooldown_samples: float = 0.0  # of wsd the last ones of the decay; of infinite-* those after the warm-up
    cooldown_style: str = "sqrt"  # shape of wsd's cool-down
    constant_lr: float = 0.0  # rate of infinite-* after its cool-down
    constant_samples: float = 0.0  # how long that lasts
    timescale: float = 10.0  # of infinite-inverse-square-root
    weight_decay: WeightDecay = WeightDecay()  # its own schedule
    pieces: tuple[Piece, ...] = ()  # of the stages of a run's data, if they give the rate

    @staticmethod
    def of(run: RunConfig) -> Schedule:
        """Return the schedule of ``run``, which is derived; its first iterations may be of fewer samples."""
        optim, whole = run.optim, planned_samples(run)
        if pieces := _pieces_of(run):
            first, peak = pieces[0], max(each.start for each in pieces)
            warmup = first.last if first.start < first.end else 0.0
            wd = _weight_decay(optim, _Lengths(run).of_weight_decay() or whole)
            return Schedule(peak, pieces[-1].end, warmup, float(whole), "constant", weight_decay=wd, pieces=pieces)
        lengths = _Lengths(run)
        decay = float(whole) if lengths.decays_with_run else lengths.of("decay") or float(whole)
        warmup = lengths.of("warmup", decay)
        cooldown = constant = 0.0
        if optim.lr_decay_style == WSD:
            cooldown = lengths.of("cooldown", decay, lengths.before(decay, optim.lr_cooldown_iters))
        elif optim.lr_decay_style in INFINITE:
            cooldown = lengths.of("cooldown", decay, warmup)
            constant = lengths.of("constant", decay, warmup + cooldown)
        return Schedule(
            optim.lr,
            optim.min_lr,
            warmup,
            decay,
            optim.lr_decay_style,
            init_lr=optim.lr_warmup_init,
            cooldown_samples=cooldown,
            cooldown_style=optim.lr_cooldown_style,
            constant_lr=optim.lr_constant,
            constant_samples=constant,
            timescale=optim.lr_timescale,
            weight_decay=_weight_decay(optim, lengths.of_weight_decay() or whole),
        )

    def at(self, samples: int) -> Rates:
        """Return the rates of the step that follows ``samples`` scheduled samples."""
        return Rates(self.lr(samples), self.weight_decay.at(samples))

    def lr(self, samples: int) -> float:
        """Return the learning rate of the step that follows ``samples`` scheduled samples."""
        if self.pieces:
            return rate_at(self.pieces, samples)
        if self.warmup_samples > 0 and samples <= self.warmup_samples:
            return self.init_lr + (self.max_lr - self.init_lr) * samples / self.warmup_samples
        if self.style == "constant":
            return self.max_lr
        if samples > self.decay_samples:
            return self.min_lr
        return _SHAPES[self.style](self, samples)

    def borders(self) -> dict[str, float]:
        """Return the samples at which one part of the learning rate's schedule ends, by name, in order."""
        if self.pieces:
            return {piece.name: piece.last for piece in self.pieces}
        found = {"warm-up": self.warmup_samples}
        if self.style == WSD:
            found["constant"] = self.decay_samples - self.cooldown_samples
        if self.style in INFINITE:
            found["cool-down"] = self.warmup_samples + self.cooldown_samples
            found["constant"] = found["cool-down"] + self.constant_samples
        if self.style != "constant":
            found["decay"] = self.decay_samples
        return found

    def _between(self, low: float, left: float) -> float:
        return low + left * (self.max_lr - low)

    def _plain(self, samples: int) -> float:
        done = (samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        return self._between(self.min_lr, _LEFT[self.style](done))

    def _inverse_square_root(self, samples: int) -> float:
        first = max(self.warmup_samples, 1.0)
        return max(self.min_lr, self.max_lr * math.sqrt(first / max(samples, first)))

    def _wsd(self, samples: int) -> float:
        start = self.decay_samples - self.cooldown_samples
        if samples <= start:
            return self.max_lr
        return self._between(self.min_lr, _LEFT[self.cooldown_style]((samples - start) / self.cooldown_samples))

    def _infinite(self, samples: int) -> float:
        cooled = self.warmup_samples + self.cooldown_samples
        if samples < cooled:
            done = (samples - self.warmup_samples) / self.cooldown_samples
            left = _LEFT["cosine"](done) if self.style == "infinite-cosine" else self._hyperbola(done)
            return self._between(self.constant_lr, left)
        start = cooled + self.constant_samples
        if samples <= start:
            return self.constant_lr
        done = (samples - start) / (self.decay_samples - start)
        return self.constant_lr * math.pow(self.min_lr / self.constant_lr, done)

    def _hyperbola(self, done: float) -> float:
        """Return 1 at 0 and 0 at 1, falling as 1 / sqrt(1 + timescale x)."""
        end = 1 / math.sqrt(1 + self.timescale)
        return (1 / math.sqrt(1 + self.timescale * done) - end) / (1 - end)


def _pieces_of(run: RunConfig) -> tuple[Piece, ...]:
    table = StageTable.of(run)
    return pieces_of(table, run.optim.lr, run.optim.lr_warmup_init) if table else ()


_SHAPES: dict[str, Callable[[Schedule, int], float]] = {
    "linear": Schedule._plain,
    "cosine": Schedule._plain,
    "inverse-square-root": Schedule._inverse_square_root,
    WSD: Schedule._wsd,
    **dict.fromkeys(INFINITE, Schedule._infinite),
}


class _Lengths:
    """The lengths that a run's settings give, in samples."""

    def __init__(self, run: RunConfig):
        self.optim, self.sizes, self.seq = run.optim, BatchSchedule.of(run), run.model.seq_length
        self.offset = run.train.samples_offset
        # Steps of before a resume may have been of other batches: then steps are no samples.
        others = any(getattr(run.optim, f"lr_decay_{unit}", 0) for unit in UNITS if unit != "iters")
        whole = run.train.planned_iters or run.train.train_iters
        self.decays_with_run = run.optim.lr_decay_iters == whole and not others

    def of(self, part: str, whole: float = 0.0, start: float = 0.0) -> float:
        """Return the length of ``part``, 0 where no setting gives one.

        Args:
            part: "warmup", "decay", "cooldown" or "constant".
            whole: samples of which a fraction is meant.
            start: sample at which the part begins; while the batch grows a step is another
                number of samples there.
        """
        for unit in UNITS:
            if value := getattr(self.optim, f"lr_{part}_{unit}", 0):
                return self._samples(unit, value, whole, int(start))
        return 0.0

    def of_weight_decay(self) -> float:
        """Return how long the weight decay changes, 0 where no setting says."""
        for unit in COUNTED:
            if value := getattr(self.optim, f"weight_decay_{unit}"):
                return self._samples(unit, value, 0.0, 0)
        return 0.0

    def before(self, end: float, steps: int) -> int:
        """Return the sample at which the last ``steps`` steps before sample ``end`` begin."""
        steps_before = self.sizes.iterations_within(int(end) - self.offset) - steps
        return max(0, self.sizes.samples_after(max(0, steps_before)) + self.offset)

    def _samples(self, unit: str, value: float, whole: float, start: int) -> float:
        if unit == "iters":
            return float(self.sizes.after(start, int(value)) - start)
        samples = value / self.seq if unit == "tokens" else value * whole if unit == "frac" else float(value)
        # A fraction such as 2000/94400 is a rounded number; the border that it means is a sample.
        return float(round(samples)) if math.isclose(samples, round(samples), rel_tol=1e-12, abs_tol=1e-9) else samples


def _weight_decay(optim: ScheduleSettings, samples: float) -> WeightDecay:
    if optim.weight_decay_incr_style == "constant":
        return WeightDecay(optim.weight_decay, optim.weight_decay)
    ends = (optim.start_weight_decay, optim.end_weight_decay)
    start, end = (optim.weight_decay if each == AS_WEIGHT_DECAY else each for each in ends)
    return WeightDecay(start, end, samples, optim.weight_decay_incr_style)
