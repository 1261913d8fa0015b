"""A plan as one page of HTML that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from megads.monitor.plots.html.page import HERE as OF_RUNS
from megads.monitor.plots.html.page import fill
from megads.monitor.plots.plan import svg
from megads.monitor.plots.plan.data import Planned
from megads.monitor.plots.plan.picture import memory_title, timeline_title
from megads.monitor.plots.plan.timeline import NAMES, PlannedTimeline
from megads.text.units import count

HERE = Path(__file__).parent


def save_plan_page(planned: Planned, path: Path) -> None:
    """Write a plan into the HTML file ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(plan_page(planned), encoding="utf8")


def plan_page(planned: Planned) -> str:
    """Return the page: charts, and all their numbers as tables."""
    parts = {
        "title": html.escape(planned.title),
        "style": "\n".join((folder / "page.css").read_text(encoding="utf8") for folder in (OF_RUNS, HERE)),
        "lines": "\n".join(f"<p>{html.escape(line)}</p>" for line in planned.lines),
        "charts": "\n".join(_charts(planned)),
        "tables": "\n".join(_tables(planned)),
    }
    return fill((HERE / "page.html").read_text(encoding="utf8"), parts)


def _charts(planned: Planned) -> Iterator[str]:
    layouts, names = planned.layouts, [layout.name for layout in planned.layouts]
    if layouts:
        memory = [layout.memory_gib for layout in layouts]
        texts = [f"{sum(each.values()):.1f} GiB" for each in memory]
        lines = [value for value in (planned.limit_gib, planned.device_gib) if value]
        yield _stacked("memory", memory_title(planned), memory, svg.bars(names, memory, texts, "GiB", lines))
        times = [layout.step_s for layout in layouts]
        texts = [f"{sum(each.values()):.3g} s" for each in times]
        yield _stacked("time", "time of a step, seconds", times, svg.bars(names, times, texts, "s"))
        speeds = [{"tokens/s": layout.tokens_per_s} for layout in layouts]
        texts = [f"{count(layout.tokens_per_s)}, {layout.mfu:.1%}" for layout in layouts]
        yield _chart("speed", "tokens/s of all ranks, and MFU", svg.bars(names, speeds, texts, "tokens/s"))
    if planned.timeline is not None:
        kinds = {block.kind for row in planned.timeline.stages for block in row}
        legend = svg.keys((name, svg.KINDS[kind]) for kind, name in NAMES.items() if kind in kinds)
        yield _chart("timeline", timeline_title(planned.timeline), legend + svg.timeline(planned.timeline))
    hosts = [each for each in planned.hosts if each.tokens_per_s]
    if hosts:
        title = "tokens/s over hosts; dashed: as fast per host as the first"
        yield _chart("hosts", title, svg.curve(hosts))


def _stacked(name: str, title: str, stacks: Sequence[dict[str, float]], drawn: str) -> str:
    keys = [(key, at) for at, key in enumerate(stacks[0]) if any(stack[key] for stack in stacks)]
    return _chart(name, title, svg.keys(keys) + drawn)


def _chart(name: str, title: str, drawn: str) -> str:
    return f'<div class="chart" id="chart-{name}"><h3>{html.escape(title)}</h3>{drawn}</div>'


def _tables(planned: Planned) -> Iterator[str]:
    layouts = planned.layouts
    if layouts:
        head = ["layout", "tokens/s", "MFU", "step, seconds", "GiB", "days", "settings"]
        rows = [
            [
                *(each.name, f"{each.tokens_per_s:,.0f}", f"{each.mfu:.1%}", f"{sum(each.step_s.values()):.4g}"),
                *(f"{sum(each.memory_gib.values()):.2f}", f"{each.days:.4g}" if each.days is not None else ""),
                each.settings,
            ]
            for each in layouts
        ]
        yield _table("Layouts", head, rows)
        for title, stacks, digits in (
            ("Memory (GiB)", [each.memory_gib for each in layouts], "{:.2f}"),
            ("Time of a step, seconds", [each.step_s for each in layouts], "{:.4g}"),
        ):
            rows = [
                [each.name, *(digits.format(value) for value in (*stack.values(), sum(stack.values())))]
                for each, stack in zip(layouts, stacks, strict=True)
            ]
            yield _table(title, ["layout", *stacks[0], "total"], rows)
    if planned.timeline is not None:
        yield _timeline_table(planned.timeline)
    if planned.hosts:
        rows = [
            [
                f"{each.hosts:,}",
                f"{each.ranks:,}",
                f"{each.tokens_per_s:,.0f}" if each.tokens_per_s else "",
                each.layout,
            ]
            for each in planned.hosts
        ]
        yield _table("Hosts", ["hosts", "ranks", "tokens/s", "layout"], rows)


def _timeline_table(timeline: PlannedTimeline) -> str:
    """Return what each stage does, and for how long: of the micro-batches that are shown."""
    kinds = [kind for kind in NAMES if any(block.kind == kind for row in timeline.stages for block in row)]
    rows = []
    for stage, row in enumerate(timeline.stages):
        spent = [sum(block.end_s - block.start_s for block in row if block.kind == kind) for kind in kinds]
        rows.append([f"stage {stage}", *(f"{each:.4g}" for each in (*spent, timeline.length_s - sum(spent)))])
    head = ["", *(NAMES[kind] for kind in kinds), "waits"]
    return _table(
        f"Pipeline in seconds: {timeline.micro_batches} of {timeline.of_micro_batches} micro-batches", head, rows
    )


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column names its rows; texts go to the left."""
    is_words = [any(row[column][:1].isalpha() for row in rows) for column in range(len(head))]
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "\n".join(
        f"<tr><th>{html.escape(row[0])}</th>"
        + "".join(
            f"<td{' class=words' if words else ''}>{html.escape(cell)}</td>"
            for cell, words in zip(row[1:], is_words[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<h2>{html.escape(title)}</h2>\n<div class=wide><table><tr>{top}</tr>\n{body}\n</table></div>"
