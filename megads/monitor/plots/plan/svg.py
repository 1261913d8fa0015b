"""Charts of a plan as SVG, which a page shows without a script. Each mark says its numbers when it is pointed at."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from megads.monitor.plots.plan.data import PlannedHosts
from megads.monitor.plots.plan.timeline import NAMES, PlannedTimeline
from megads.monitor.plots.style import COLOURS, log_ticks, round_ticks, tick_labels

WIDTH, RIGHT, TOP, BELOW = 1000, 110, 6, 24  # pixels
BAR, ROW, CHART = 22, 22, 280
LETTER = 6.4  # of the widest usual text
KINDS = {"F": 0, "B": 1, "W": 2, "reduce": 4, "optimizer": 9}
"""Colour of a kind of block."""


def keys(names: Iterable[tuple[str, int]]) -> str:
    """Return a legend: each name with the number of its colour."""
    each = (
        f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>{html.escape(name)}</span>' for name, at in names
    )
    return f'<div class="keys">{"".join(each)}</div>'


def bars(
    names: Sequence[str],
    stacks: Sequence[dict[str, float]],
    texts: Sequence[str],
    unit: str,
    lines: Sequence[float] = (),
) -> str:
    """Return a stacked bar for each name, the first on top, with a text behind it.

    Args:
        stacks: what each bar is made of; all have the same keys.
        lines: values that are marked.
    """
    left, height = _left(names), TOP + BAR * len(names)
    most = max([*(sum(stack.values()) for stack in stacks), *lines], default=0.0) or 1.0
    inner = WIDTH - left - RIGHT

    def place(value: float) -> float:
        return left + value / most * inner

    parts = [*_ticks(place, most, height)]
    for row, (name, stack, text) in enumerate(zip(names, stacks, texts, strict=True)):
        top, at = TOP + BAR * row, 0.0
        parts.append(_text(left - 6, top + 15, name, "end"))
        for number, (key, value) in enumerate(stack.items()):
            if value > 0:
                said = f"{name}: {key} {value:.4g} {unit}"
                parts.append(_box(place(at), top + 3, place(at + value) - place(at), BAR - 6, number, said))
            at += value
        parts.append(_text(place(at) + 6 if not lines else left + inner + 6, top + 15, text))
    parts += [
        f'<line class="limit" x1="{place(value):.1f}" x2="{place(value):.1f}" y1="{TOP}" y2="{height}"/>'
        for value in lines
    ]
    return _svg(height + BELOW, parts)


def timeline(planned: PlannedTimeline) -> str:
    """Return a row of blocks for each stage, over seconds."""
    left, height = 64, TOP + ROW * len(planned.stages)

    def place(value: float) -> float:
        return left + value / planned.length_s * (WIDTH - left - 10)

    parts = [*_ticks(place, planned.length_s, height)]
    for stage, row in enumerate(planned.stages):
        top = TOP + ROW * stage
        parts.append(_text(left - 6, top + 15, f"stage {stage}", "end"))
        for block in row:
            which = f" of micro-batch {block.micro_batch}, chunk {block.chunk}" if block.micro_batch >= 0 else ""
            said = f"{NAMES[block.kind]}{which}: {block.start_s:.4g} s to {block.end_s:.4g} s"
            width = place(block.end_s) - place(block.start_s)
            parts.append(_box(place(block.start_s), top + 2, max(0.2, width - 0.4), ROW - 4, KINDS[block.kind], said))
    return _svg(height + BELOW, parts)


def curve(hosts: Sequence[PlannedHosts]) -> str:
    """Return speed over hosts, both logarithmic, and the line of the first one's speed per host."""
    left, right, height = 64, WIDTH - 20, TOP + CHART
    even = [hosts[0].tokens_per_s / hosts[0].hosts * each.hosts for each in hosts]
    values = [*(each.tokens_per_s for each in hosts), *even]
    low, high = math.log(min(values) / 1.2), math.log(max(values) * 1.2)
    first, last = math.log(hosts[0].hosts), math.log(hosts[-1].hosts)

    def x(each: PlannedHosts) -> float:
        return left + 20 + (math.log(each.hosts) - first) / (last - first or 1.0) * (right - left - 40)

    def y(value: float) -> float:
        return height - (math.log(value) - low) / (high - low) * CHART

    ticks = log_ticks(math.exp(low), math.exp(high))
    parts = []
    for at, label in zip(ticks, tick_labels(ticks, log=True), strict=True):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(at):.1f}" y2="{y(at):.1f}"/>')
        parts.append(_text(left - 6, y(at) + 4, label, "end", "pale"))
    parts += [_text(x(each), height + 16, f"{each.hosts:,}", "middle") for each in hosts]
    ends = x(hosts[0]), y(even[0]), x(hosts[-1]), y(even[-1])
    parts.append('<line class="even" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(*ends))
    points = " L".join(f"{x(each):.1f} {y(each.tokens_per_s):.1f}" for each in hosts)
    parts.append(f'<path d="M{points}" stroke="{COLOURS[0]}"/>')
    for each in hosts:
        said = f"{each.hosts:,} hosts, {each.ranks:,} ranks: {each.tokens_per_s:,.0f} tokens/s, {each.layout}"
        place = f'cx="{x(each):.1f}" cy="{y(each.tokens_per_s):.1f}"'
        parts.append(f'<circle {place} r="4" fill="{COLOURS[0]}"><title>{html.escape(said)}</title></circle>')
    return _svg(height + BELOW, parts)


def _left(names: Sequence[str]) -> float:
    return 20 + LETTER * max(map(len, names), default=0)


def _ticks(place: Callable[[float], float], most: float, height: float) -> Iterator[str]:
    values = round_ticks(0.0, most, 8)
    for value, label in zip(values, tick_labels(values), strict=True):
        at = place(value)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{height}"/>'
        yield _text(at, height + 16, label, "middle", "pale")


def _box(left: float, top: float, width: float, height: float, colour: int, said: str) -> str:
    place = f'x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{height}"'
    fill = COLOURS[colour % len(COLOURS)]
    return f'<rect {place} fill="{fill}"><title>{html.escape(said)}</title></rect>'


def _text(x: float, y: float, text: str, anchor: str = "start", look: str = "") -> str:
    more = f' class="{look}"' if look else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(text)}</text>'


def _svg(height: float, parts: Iterable[str]) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    return f'<svg {size} role="img">{"".join(parts)}</svg>'
