"""The schedule of a run as a picture, a sketch and a table; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megads.config.data_stages.views import tokens_until
from megads.config.schedule.batches import BatchSchedule, samples_at_end
from megads.config.schedule.rates import Schedule
from megads.config.schema import RunConfig
from megads.monitor.plots import style
from megads.monitor.plots.sketch import sketch
from megads.monitor.plots.style import COLOURS, LABEL, QUIET, TICK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1000
WIDTH, LEFT, RIGHT = 8.0, 0.75, 0.35  # inches
TITLE, HEAD, FOOT = 0.2, 0.6, 0.85  # inches: above all, above each chart, below all
HEIGHTS = {"learning rate": 2.6}  # inches, of the axes; 1 where nothing is said
UNITS = {"batch": " (samples)"}


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
            [tokens_until(run, samples) for samples in seen],
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


def render_schedule(curves: Curves, title: str) -> Any:
    """Return the figure of learning rate, weight decay and batch over steps and tokens, one below the other.

    Phases of the learning rate are shaded, their names in the middle.
    """
    panels, phases = _panels(curves), _phases(curves)
    heights = [HEIGHTS.get(name, 1.0) for name in panels]
    figure = style.new_figure(WIDTH, TITLE + sum(heights) + HEAD * len(panels) + FOOT)
    across = WIDTH - LEFT - RIGHT
    figure.text(LEFT / WIDTH, 1 - 0.17 / figure.get_size_inches()[1], title, fontsize=11, weight="bold", va="center")
    top, last = TITLE, curves.steps[-1] + 1
    for number, ((name, values), height) in enumerate(zip(panels.items(), heights, strict=True)):
        axes = style.add_axes(figure, LEFT, top + HEAD, across, height)
        axes.step([*curves.steps, last], [*values, values[-1]], where="post", lw=1.5, color=COLOURS[number])
        style.polish(axes)
        axes.set_xlim(curves.steps[0], last)
        axes.set_ylim(0, 1.08 * max(values) or 1)
        style.set_ticks(axes.yaxis, 6 if height > 1.5 else 3, whole=name == "batch")
        style.set_ticks(axes.xaxis, 8, whole=True)
        for index, (begin, end, _) in enumerate(phases):
            axes.axvspan(begin, end, color=COLOURS[(index + 3) % len(COLOURS)], alpha=0.09, lw=0)
        style.draw_heading(axes, name + UNITS.get(name, ""), _name_phases(axes, phases, across) if not number else [])
        top += HEAD + height
    axes.set_xlabel("step", fontsize=8.5, labelpad=1)
    _token_axis(axes, curves, heights[-1])
    return figure


def _phases(curves: Curves) -> list[tuple[float, float, str]]:
    """Return the first and the last step of each phase, and its name; what comes behind the last one has no phase."""
    found, begin = [], float(curves.steps[0])
    for name, end in sorted(curves.borders.items(), key=lambda border: border[1]):
        if end > begin:
            found.append((begin, end, name))
            begin = end
    return found


def _name_phases(axes: Axes, phases: Sequence[tuple[float, float, str]], across: float) -> list[tuple[Any, str]]:
    """Write the names into their phases; return a legend of those that are too short for their name."""
    from matplotlib.patches import Patch

    low, high = axes.get_xlim()
    others: list[tuple[Any, str]] = []
    for index, (begin, end, name) in enumerate(phases):
        if (end - begin) / (high - low) * across > style.text_inches(axes.figure, name, LABEL) + 0.08:
            place: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": LABEL, "color": QUIET}
            axes.text((begin + end) / 2, 0.03, name, transform=axes.get_xaxis_transform(), **place)
        else:
            others.append((Patch(color=COLOURS[(index + 3) % len(COLOURS)], alpha=0.35, lw=0), name))
    return others


def _token_axis(axes: Axes, curves: Curves, height: float) -> None:
    """Say below the last chart, ``height`` inches high, how many tokens the steps are."""
    if len(curves.steps) < 2:
        return
    values = style.round_ticks(curves.tokens[0], curves.tokens[-1], 8)
    if not values[-1]:
        return
    steps = np.interp(values, curves.tokens, curves.steps)
    low, high = axes.get_xlim()
    across, free, shown = axes.get_position().width * WIDTH, 0.0, list[str]()
    for at, label in zip(steps, style.tick_labels(values), strict=True):
        middle, half = (at - low) / (high - low) * across, style.text_inches(axes.figure, label, TICK) / 2
        shown.append(label if middle - half >= free else "")  # a ramp-up has many tokens close to each other
        free = middle + half + 0.08 if shown[-1] else free
    below = axes.secondary_xaxis(-0.42 / height)
    below.set_xticks(steps, labels=shown)
    below.tick_params(labelsize=TICK, length=2, pad=1)
    below.set_xlabel("tokens", fontsize=8.5, labelpad=1)


def sketch_schedule(curves: Curves, width: int = 72, height: int = 14) -> str:
    """Return the curves that change as text for a terminal, no colours."""
    steps = np.array(curves.steps, float)
    return "\n".join(
        f"{label}\n{sketch([('', steps, np.array(values), False)], 'step', width, height, zero=True)}"
        for label, values in _panels(curves).items()
        if label == "learning rate" or len(set(values)) > 1
    )


def schedule_table(run: RunConfig) -> str:
    """Return where each part of the learning rate's schedule ends, and at which rate."""
    sizes, schedule = BatchSchedule.of(run), Schedule.of(run)
    rows = [("end of", "step", "samples", "tokens", "learning rate", "weight decay")]
    for name, at in {"start": 0.0, **schedule.borders(), "run": float(samples_at_end(run))}.items():
        rates = schedule.at(int(at))
        counts = (f"{sizes.iterations_within(int(at)):,}", _count(at), _count(_tokens(run, at)))
        rows.append((name, *counts, f"{rates.lr:.6g}", f"{rates.weight_decay:.6g}"))
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    form = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in widths)])
    return "\n".join(form.format(*row) for row in rows)


def _tokens(run: RunConfig, samples: float) -> float:
    return tokens_until(run, int(samples)) + (samples - int(samples)) * run.model.seq_length


def _count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
