"""A sweep of the learning rate: what was measured, when it is over, and what it suggests; no torch."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path

from megads.config.files import write_whole
from megads.config.schedule_settings import LrFinderConfig

DIVERGED = 1.5
"""The smoothed loss, as a multiple of its smallest value, at which a sweep has seen enough."""

WINDOW = 20
"""A slope is taken over two of so many parts of the sweep: single steps are noise."""


@dataclass(frozen=True)
class Point:
    """One step of a sweep."""

    lr: float
    loss: float  # nats per token, before the step's update
    smoothed: float  # mean of the losses so far, the recent ones counting most


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

    def suggestion(self) -> Point | None:
        """Return where the smoothed loss falls fastest over the logarithm of the rate, None if it never falls."""
        finite = [point for point in self.points if math.isfinite(point.smoothed)]
        reach = max(1, len(finite) // WINDOW)
        best: tuple[float, Point] | None = None
        for at in range(reach, len(finite) - reach):
            before, after = finite[at - reach], finite[at + reach]
            slope = (after.smoothed - before.smoothed) / math.log(after.lr / before.lr)
            if slope < (best[0] if best else 0.0):
                best = slope, finite[at]
        return best[1] if best else None

    def write(self, path: Path) -> None:
        """Write the points as CSV; the file appears whole or not at all."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("iteration", "learning_rate", "lm_loss", "smoothed_loss"))
        for number, point in enumerate(self.points, start=1):
            writer.writerow((number, point.lr, point.loss, point.smoothed))
        write_whole(path, text.getvalue())

    def draw(self, path: Path, title: str) -> None:
        """Draw loss over learning rate into ``path``, a PNG file."""
        from matplotlib.figure import Figure

        finite = [point for point in self.points if math.isfinite(point.smoothed)]
        rates = [point.lr for point in finite]
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(rates, [point.loss for point in finite], lw=0.6, color="0.7", label="each step")
        axes.plot(rates, [point.smoothed for point in finite], lw=1.5, label="smoothed")
        if found := self.suggestion():
            axes.axvline(found.lr, ls="--", lw=1, color="C3", label=f"falls fastest at {found.lr:.2g}")
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss (nats per token)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path, dpi=120)
