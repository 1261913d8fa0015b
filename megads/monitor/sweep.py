"""A sweep of the learning rate: what was measured, when it is over, and what it suggests; no torch."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megads.config.run_folder import write_whole
from megads.config.settings.schedule import LrFinderConfig
from megads.monitor.plots import style
from megads.monitor.plots.style import COLOURS, LABEL, QUIET

DIVERGED = 1.5  # smoothed loss, as a multiple of its smallest value, at which a sweep ends
REACH = 1 / 20  # part of the sweep to each side that losses and slopes are taken over: single steps are noise
FEWEST = 20  # steps that a suggestion needs before the loss diverges
WIDEST = 1.4  # largest factor between two rates: beyond it the steepest place is a matter of chance
CLEAR = 3.0  # times the noise of a step by which the loss must fall
RISEN = 0.2  # part of its fall by which the loss has risen again where it begins to diverge
MARGIN = 10.0  # between the rate at which the loss begins to diverge and the largest one that is suggested


@dataclass(frozen=True)
class Point:
    """One step of a sweep."""

    lr: float
    loss: float  # nats per token, before the step's update
    smoothed: float  # mean of the losses so far, the recent ones counting most


@dataclass(frozen=True)
class Suggestion:
    """What a sweep suggests."""

    lr: float | None  # the lower one of where the loss falls fastest and a tenth of ``diverges``; None: no suggestion
    why: str  # for either
    diverges: float | None = None


@dataclass
class Sweep:
    """Learning rates from ``lowest`` to ``highest``, each a fixed factor above the one before."""

    settings: LrFinderConfig
    points: list[Point] = field(default_factory=list)
    _mean: float = 0.0  # of the losses, biased to 0 as Adam's moments are

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        low, high, last = self.settings.lowest, self.settings.highest, self.settings.iters - 1
        done = len(self.points)
        return high if done == last else low * (high / low) ** (done / last)

    def add(self, loss: float) -> None:
        """Take note of the loss that the step with :attr:`rate` began with."""
        keep = self.settings.smoothing
        self._mean = keep * self._mean + (1 - keep) * loss
        smoothed = self._mean / (1 - keep ** (len(self.points) + 1))
        self.points.append(Point(self.rate, loss, smoothed))

    @property
    def has_diverged(self) -> bool:
        """Whether the loss has become much larger than it was, or no number at all."""
        if not self.points:
            return False
        last = self.points[-1].smoothed
        return not math.isfinite(last) or last > DIVERGED * min(point.smoothed for point in self.points)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to try."""
        return self.has_diverged or len(self.points) >= self.settings.iters

    @property
    def factor(self) -> float:
        """The factor between two rates."""
        wanted = self.settings
        return float((wanted.highest / wanted.lowest) ** (1 / max(1, wanted.iters - 1)))

    def centred(self) -> list[tuple[float, float]]:
        """Return rates and losses, each loss the mean of those around it; unlike the smoothed loss it does not lag."""
        finite = [point for point in self.points if math.isfinite(point.loss)]
        reach = self._reach(len(finite))
        found = []
        for at, point in enumerate(finite):
            near = min(reach, at, len(finite) - 1 - at)  # as many on both sides
            losses = [each.loss for each in finite[at - near : at + near + 1]]
            found.append((point.lr, math.fsum(losses) / len(losses)))
        return found

    def _reach(self, steps: int) -> int:
        return max(1, round(steps * REACH))

    def suggestion(self) -> Suggestion:
        """Return where the loss falls fastest, but at most a tenth of the rate at which it begins to diverge."""
        curve = self.centred()
        if self.factor > WIDEST:
            wanted = self.settings
            enough = 1 + math.ceil(math.log(wanted.highest / wanted.lowest) / math.log(WIDEST))
            rates = f"each rate is {self.factor:.2g} times the one before"
            return Suggestion(None, f"not enough steps: {rates}; set LR_FINDER_ITERS={max(100, enough)}")
        if len(curve) < FEWEST:
            return Suggestion(None, f"not enough steps: {len(curve)} of at least {FEWEST}; lower LR_FINDER_MIN")
        losses = [loss for _, loss in curve]
        lowest = min(range(len(curve)), key=losses.__getitem__)
        fall = max(losses[: lowest + 1]) - losses[lowest]
        if fall <= CLEAR * self._noise(losses) or fall <= 0:
            more = "raise LR_FINDER_ITERS or GLOBAL_BATCH, or move LR_FINDER_MIN and _MAX"
            return Suggestion(None, f"the loss does not fall clearly; {more}")
        risen = [at for at in range(lowest + 1, len(curve)) if losses[at] > losses[lowest] + RISEN * fall]
        diverges = curve[risen[0]][0] if risen else self.points[-1].lr if self.has_diverged else None
        reach = self._reach(len(curve))
        slopes = {
            at: (losses[at + reach] - losses[at - reach]) / math.log(curve[at + reach][0] / curve[at - reach][0])
            for at in range(reach, min(lowest + 1, len(curve) - reach))
        }
        if not slopes:
            return Suggestion(None, "the loss is lowest at the smallest rates; lower LR_FINDER_MIN")
        steepest = curve[min(slopes, key=slopes.__getitem__)][0]
        if diverges is not None and diverges / MARGIN < steepest:
            return Suggestion(diverges / MARGIN, f"a tenth of {diverges:.2g}, where it diverges", diverges)
        return Suggestion(steepest, "where the loss falls fastest", diverges)

    def _noise(self, centred: list[float]) -> float:
        """Return how far a step's loss lies from the mean of those around it, as a standard deviation."""
        finite = [point.loss for point in self.points if math.isfinite(point.loss)]
        apart = sorted(abs(loss - mean) for loss, mean in zip(finite, centred, strict=True))
        return 1.4826 * apart[len(apart) // 2]  # of the median: the steps that diverge do not count

    def write(self, path: Path) -> None:
        """Write the points as CSV; the file appears whole or not at all."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("iteration", "learning_rate", "lm_loss", "smoothed_loss"))
        for number, point in enumerate(self.points, start=1):
            writer.writerow((number, point.lr, point.loss, point.smoothed))
        write_whole(path, text.getvalue())

    def render(self, title: str) -> Any:
        """Return the figure: loss over learning rate, what is suggested, and where the loss diverges."""
        finite = [point for point in self.points if math.isfinite(point.loss)]
        rates, curve, found = [point.lr for point in finite], self.centred(), self.suggestion()
        figure = style.new_figure(7.0, 3.9)
        axes = style.add_axes(figure, 0.75, 0.55, 6.05, 2.8)
        (raw,) = axes.plot(rates, [point.loss for point in finite], lw=0.8, color=COLOURS[0], alpha=0.35)
        (mean,) = axes.plot(rates, [loss for _, loss in curve], lw=1.6, color=COLOURS[0])
        entries = [(raw, "each step"), (mean, "centred mean")]
        axes.set_xscale("log")
        axes.set_xlim(self.settings.lowest, max(self.settings.highest, 2 * self.settings.lowest))
        losses = [loss for _, loss in curve]
        if losses:
            # What is far above the start is irrelevant, and would flatten the rest.
            top = max(losses[0] + 0.3 * (losses[0] - min(losses)), 1.02 * max(losses[: len(losses) // 2 + 1]))
            axes.set_ylim(min(losses) - 0.05 * (top - min(losses)) - 1e-9, top)
        style.polish(axes)
        if found.lr is not None:
            entries.append((axes.axvline(found.lr, ls="--", lw=1.4, color=COLOURS[1]), f"suggested: {found.lr:.2g}"))
        if found.diverges is not None and found.diverges < self.settings.highest:
            axes.axvspan(found.diverges, self.settings.highest, color=COLOURS[7], alpha=0.1, lw=0)
            middle = math.sqrt(found.diverges * self.settings.highest)
            place = {"ha": "center", "va": "bottom", "fontsize": LABEL, "color": QUIET, "clip_on": True}
            axes.text(middle, 0.03, "diverges", transform=axes.get_xaxis_transform(), **place)
        style.set_ticks(axes.xaxis, 8, log=True)
        style.set_ticks(axes.yaxis, 7)
        axes.set_xlabel("learning rate", fontsize=8.5, labelpad=2)
        style.draw_heading(axes, f"{title}: loss (nats per token)", entries)
        return figure
