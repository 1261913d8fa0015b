"""The schedule of a run as a picture, a sketch and a table; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megads.config.batches import BatchSchedule
from megads.config.schedule import Schedule
from megads.config.schema import RunConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1000


@dataclass(frozen=True)
class Curves:
    """What a run's steps are to use, one entry for each step that is drawn; steps count from 1."""

    steps: list[int]
    tokens: list[int]  # seen before the step
    lr: list[float]
    weight_decay: list[float]
    batch: list[int]  # samples
    borders: dict[str, float]  # step with which each part of the learning rate's schedule is over

    @staticmethod
    def of(run: RunConfig) -> Curves:
        """Return the curves of a derived run: points at equal distances, and those around every border."""
        sizes, schedule, last = BatchSchedule.of(run), Schedule.of(run), run.train.train_iters
        borders = {name: 1 + _steps_in(sizes, at) for name, at in schedule.borders().items() if at}
        near = {int(at) + more for at in borders.values() for more in (-1, 0, 1)}
        changes = {1 + phase for phase in _ends(sizes, last)}
        evenly = {1 + round(i * (last - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)}
        steps = sorted(step for step in evenly | near | changes if 1 <= step <= last)
        consumed, done, seen = 0, 0, []
        for step in steps:
            consumed, done = sizes.after(consumed, step - 1 - done), step - 1
            seen.append(consumed)
        rates = [schedule.at(samples) for samples in seen]
        return Curves(
            steps,
            [samples * run.model.seq_length for samples in seen],
            [rate.lr for rate in rates],
            [rate.weight_decay for rate in rates],
            [sizes.batch_at(samples) for samples in seen],
            {name: at for name, at in borders.items() if at <= last + 1},
        )


def _steps_in(sizes: BatchSchedule, samples: float) -> float:
    """Return how many steps ``samples`` samples are, the last one in part."""
    whole = sizes.iterations_within(int(samples))
    consumed = sizes.samples_after(whole)
    return whole + (samples - consumed) / sizes.batch_at(consumed)


def _ends(sizes: BatchSchedule, last: int) -> list[int]:
    """Return the steps after which the batch changes."""
    ends, done = [], 0
    for phase in sizes.phases():
        if phase.steps is None or done > last:
            break
        done += phase.steps
        ends += [done - 1, done]
    return ends


def _panels(curves: Curves) -> dict[str, list[float]]:
    batch = [float(samples) for samples in curves.batch]
    return {"learning rate": curves.lr, "weight decay": curves.weight_decay, "batch": batch}


def draw_schedule(curves: Curves, path: Path, title: str) -> None:
    """Draw learning rate, weight decay and batch over steps and tokens into ``path``, a PNG file.

    Raises:
        OSError: the file can not be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    rows: Any = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    panels = _panels(curves)
    for axes, (label, values) in zip(rows, panels.items(), strict=True):
        axes.step([*curves.steps, curves.steps[-1] + 1], [*values, values[-1]], where="post", lw=1.5)
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.08 * max(values) or 1)
        axes.grid(alpha=0.3)
    rows[0].yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    _mark(rows[0], curves)
    rows[2].set_xlabel("step")
    _token_axis(rows[0], curves)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _mark(axes: Axes, curves: Curves) -> None:
    """Say where each part of the schedule ends."""
    for name, step in curves.borders.items():
        axes.axvline(step, ls=":", lw=1, color="0.4")
        axes.annotate(
            name,
            (step, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            color="0.3",
            fontsize=8,
        )


def _token_axis(axes: Axes, curves: Curves) -> None:
    import numpy as np

    steps, tokens = np.array(curves.steps, float), np.array(curves.tokens, float)
    if len(steps) < 2:
        return

    def to_tokens(step: Any) -> Any:
        # Beyond the ends as fast as at them: matplotlib draws a margin there.
        low, high = (tokens[1] - tokens[0]) / (steps[1] - steps[0]), (tokens[-1] - tokens[-2]) / (steps[-1] - steps[-2])
        inside = np.interp(step, steps, tokens)
        return inside + low * np.minimum(step - steps[0], 0) + high * np.maximum(step - steps[-1], 0)

    def to_steps(count: Any) -> Any:
        low, high = (steps[1] - steps[0]) / (tokens[1] - tokens[0]), (steps[-1] - steps[-2]) / (tokens[-1] - tokens[-2])
        inside = np.interp(count, tokens, steps)
        return inside + low * np.minimum(count - tokens[0], 0) + high * np.maximum(count - tokens[-1], 0)

    above = axes.secondary_xaxis("top", functions=(to_tokens, to_steps))
    above.set_xlabel("tokens")


def sketch_schedule(curves: Curves, width: int = 72, height: int = 14) -> str:
    """Return the curves that change as text for a terminal, no colours."""
    panels = _panels(curves)
    drawn = [(label, values) for label, values in panels.items() if label == "learning rate" or len(set(values)) > 1]
    return "\n".join(f"{label}\n{_sketch(curves.steps, values, width, height)}" for label, values in drawn)


def _sketch(steps: list[int], values: Any, width: int, height: int) -> str:
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.plot(steps, values)
    plotext.ylim(0, max(values) or 1)
    plotext.xlabel("step")
    text: str = plotext.uncolorize(plotext.build())
    return text


def schedule_table(run: RunConfig) -> str:
    """Return where each part of the learning rate's schedule ends, and at which rate."""
    sizes, schedule, seq = BatchSchedule.of(run), Schedule.of(run), run.model.seq_length
    ends = {**schedule.borders(), "run": float(sizes.samples_after(run.train.train_iters))}
    rows = [("end of", "step", "samples", "tokens", "learning rate", "weight decay")]
    for name, at in {"start": 0.0, **ends}.items():
        rates = schedule.at(int(at))
        counts = (f"{sizes.iterations_within(int(at)):,}", _count(at), _count(at * seq))
        rows.append((name, *counts, f"{rates.lr:.6g}", f"{rates.weight_decay:.6g}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines)


def _count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
