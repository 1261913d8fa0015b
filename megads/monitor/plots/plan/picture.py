"""A plan as a PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megads.monitor.plots import style
from megads.monitor.plots.plan.data import Planned, PlannedHosts, PlannedLayout
from megads.monitor.plots.plan.timeline import NAMES, PlannedTimeline
from megads.monitor.plots.style import COLOURS, LABEL, QUIET
from megads.text.units import count, seconds

WIDTH, RIGHT = 12.0, 0.9  # inches
TITLE, LINE, BAR, ROW, CHART, FOOT = 0.42, 0.17, 0.27, 0.24, 3.2, 0.5  # inches: heights
MOST_LEFT = 3.4
LEAST_HIDDEN = 0.05
BLOCKS = {"F": 0, "B": 1, "W": 2, "reduce": 4, "optimizer": 9}
"""Colour of a kind of block."""


def save_plan(planned: Planned, path: Path) -> None:
    """Draw a plan into the PNG file ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    render_plan(planned).savefig(path, format="png", pil_kwargs={"compress_level": 3})


def render_plan(planned: Planned) -> Any:
    """Return the figure: memory, time and speed of every layout, and the timeline of the best; or hosts."""
    figure = style.new_figure(WIDTH, 1.0)
    parts = [each for each in _parts(figure, planned) if each.height]
    above = TITLE + LINE * len(planned.lines)
    down = above + sum(each.head + each.height + FOOT for each in parts)
    figure.set_size_inches(WIDTH, down)
    figure.text(0.02, 1 - 0.2 / down, planned.title, fontsize=11, weight="bold", va="center")
    for number, line in enumerate(planned.lines):
        place = 1 - (0.4 + LINE * number) / down
        figure.text(0.02, place, line, fontsize=LABEL, color=QUIET, va="center")
    top = above
    for part in parts:
        axes = style.add_axes(figure, part.left, top + part.head, WIDTH - part.left - RIGHT, part.height)
        part.draw(axes)
        top += part.head + part.height + FOOT
    return figure


class _Part:
    """A chart: how high it is, and how it is drawn."""

    height = 0.0

    def __init__(self, figure: Any, names: Sequence[str], title: str, entries: style.Entries):
        widest = max((style.text_inches(figure, name, LABEL) for name in names), default=0.0)
        self.left = min(MOST_LEFT, max(0.6, widest + 0.2))
        self.title, self.entries = title, entries
        self.head = style.heading_inches(figure, entries, WIDTH - self.left - RIGHT)

    def draw(self, axes: Any) -> None:
        """Draw the chart, its ticks and its heading."""
        raise NotImplementedError


class _Bars(_Part):
    """A stacked bar for each layout, the first on top, with a text behind it."""

    def __init__(
        self,
        figure: Any,
        layouts: Sequence[PlannedLayout],
        title: str,
        stacks: Sequence[dict[str, float]],
        texts: Sequence[str],
        lines: dict[str, float] | None = None,
    ):
        self.names = [layout.name for layout in layouts]
        self.keys = {key: COLOURS[at % len(COLOURS)] for at, key in enumerate(stacks[0])}
        entries = [(_patch(self.keys[key]), key) for key in self.keys if any(stack[key] for stack in stacks)]
        super().__init__(figure, self.names, title, entries if len(entries) > 1 else [])
        self.stacks, self.texts, self.lines = stacks, texts, lines or {}
        self.height = BAR * len(layouts)

    def draw(self, axes: Any) -> None:
        style.polish(axes, grid=False)
        axes.grid(axis="x", alpha=0.25, lw=0.6)
        places = [len(self.names) - 1 - at for at in range(len(self.names))]
        left = [0.0] * len(places)
        for key, colour in self.keys.items():
            widths = [stack[key] for stack in self.stacks]
            axes.barh(places, widths, left=left, height=0.7, color=colour, alpha=0.85)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        most = max([*left, *self.lines.values()])
        for name, value in self.lines.items():
            axes.axvline(value, color=COLOURS[7], lw=1.0, ls="--" if "limit" in name else "-")
        axes.set_xlim(0, 1.001 * most or 1.0)
        axes.set_ylim(-0.6, len(places) - 0.4)
        for place, text in zip(places, self.texts, strict=True):
            axes.text(1.008, place, text, transform=axes.get_yaxis_transform(), fontsize=LABEL, va="center")
        axes.set_yticks(places, labels=self.names, fontsize=LABEL)
        style.set_ticks(axes.xaxis, 8)
        style.draw_heading(axes, self.title, self.entries)


class _Timeline(_Part):
    """A row of blocks for each stage."""

    def __init__(self, figure: Any, timeline: PlannedTimeline):
        kinds = dict.fromkeys(block.kind for row in timeline.stages for block in row)
        entries = [(_patch(COLOURS[BLOCKS[kind]]), NAMES[kind]) for kind in NAMES if kind in kinds]
        super().__init__(figure, ["stage 00"], timeline_title(timeline), entries)
        self.timeline = timeline
        self.height = ROW * len(timeline.stages)

    def draw(self, axes: Any) -> None:
        style.polish(axes, grid=False)
        rows = self.timeline.stages
        for stage, row in enumerate(rows):
            place = len(rows) - 1 - stage
            for kind, number in BLOCKS.items():
                spans = [(block.start_s, block.end_s - block.start_s) for block in row if block.kind == kind]
                axes.broken_barh(spans, (place - 0.4, 0.8), facecolor=COLOURS[number], edgecolor="white", lw=0.3)
        axes.set_xlim(0, self.timeline.length_s)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        labels = [f"stage {stage}" for stage in range(len(rows))]
        axes.set_yticks(range(len(rows) - 1, -1, -1), labels=labels, fontsize=LABEL)
        style.set_ticks(axes.xaxis, 8)
        axes.set_xlabel("seconds", fontsize=8.0, labelpad=1)
        style.draw_heading(axes, self.title, self.entries)


class _Hosts(_Part):
    """Speed over numbers of hosts, next to a straight line through the first one."""

    height = CHART

    def __init__(self, figure: Any, hosts: Sequence[PlannedHosts]):
        from matplotlib.lines import Line2D

        entries = [
            (Line2D([], [], color=COLOURS[0], marker="o", ms=3.5), "best layout"),
            (Line2D([], [], color=QUIET, ls="--"), "as fast per host as the first"),
        ]
        super().__init__(figure, ["1000M"], "tokens/s over hosts", entries)
        self.hosts = [each for each in hosts if each.tokens_per_s]

    def draw(self, axes: Any) -> None:
        style.polish(axes)
        x, y = [each.hosts for each in self.hosts], [each.tokens_per_s for each in self.hosts]
        even = [y[0] / x[0] * hosts for hosts in x]
        axes.plot(x, even, color=QUIET, ls="--", lw=1.0)
        axes.plot(x, y, color=COLOURS[0], marker="o", ms=3.5, lw=1.4)
        if len(x) > 1:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        axes.set_xticks(x, labels=[f"{each:,}" for each in x], fontsize=LABEL)
        axes.set_xticks([], minor=True)
        low, high = min([*y, *even]), max([*y, *even])
        axes.set_ylim(low / 1.3, high * 1.3)
        style.set_ticks(axes.yaxis, 7, log=len(x) > 1)
        axes.set_xlabel("hosts", fontsize=8.0, labelpad=1)
        style.draw_heading(axes, self.title, self.entries)


def _parts(figure: Any, planned: Planned) -> list[_Part]:
    layouts = planned.layouts
    parts: list[_Part] = []
    if layouts:
        limits = {name: at for name, at in (("limit", planned.limit_gib), ("device", planned.device_gib)) if at}
        memory = [layout.memory_gib for layout in layouts]
        texts = [f"{sum(each.values()):.1f} GiB" for each in memory]
        parts.append(
            _Bars(
                figure, layouts, memory_title(planned), memory, texts, {name: at for name, at in limits.items() if at}
            )
        )
        times = [layout.step_s for layout in layouts]
        texts = [f"{sum(each.values()):.3g} s" for each in times]
        parts.append(_Bars(figure, layouts, "time of a step, seconds", times, texts))
        speeds = [{"tokens/s": layout.tokens_per_s} for layout in layouts]
        texts = [f"{count(layout.tokens_per_s)}, {layout.mfu:.1%}" for layout in layouts]
        parts.append(_Bars(figure, layouts, "tokens/s of all ranks, and MFU", speeds, texts))
    if planned.timeline is not None:
        parts.append(_Timeline(figure, planned.timeline))
    if any(each.tokens_per_s for each in planned.hosts):
        parts.append(_Hosts(figure, planned.hosts))
    return parts


def memory_title(planned: Planned) -> str:
    """Return what the bars of memory show."""
    return (
        f"memory of the fullest rank (GiB); a device has {planned.device_gib:.4g}, the limit is {planned.limit_gib:.4g}"
    )


def timeline_title(timeline: PlannedTimeline) -> str:
    """Return what a timeline shows, and of what."""
    batches = f"{timeline.micro_batches} of {timeline.of_micro_batches}"
    batches = f"{timeline.of_micro_batches}" if timeline.micro_batches == timeline.of_micro_batches else batches
    rows = (
        f", {len(timeline.stages)} of {timeline.of_stages} stages" if len(timeline.stages) < timeline.of_stages else ""
    )
    return (
        f"simulated pipeline of the best layout: {timeline.schedule}, micro-batches {batches}{rows}; "
        f"stages wait {timeline.idle:.1%}{_hidden(timeline)}"
    )


def _hidden(timeline: PlannedTimeline) -> str:
    """Return how long the step is here and in the table, where that differs by more than can be seen."""
    if timeline.step_s > (1 - LEAST_HIDDEN) * timeline.predicted_s:
        return ""
    return f"; step {seconds(timeline.step_s)}, {seconds(timeline.predicted_s)} predicted (no message hidden)"


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, alpha=0.85, lw=0)
