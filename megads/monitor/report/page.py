"""The report as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from megads.monitor.plots.drawing import Drawing
from megads.monitor.plots.html import page as plots
from megads.monitor.plots.style import COLOURS
from megads.monitor.report.campaign import Campaign
from megads.monitor.report.shares import PARTS, WAIT, Link, host_seconds
from megads.monitor.report.text import (
    HEAD,
    RUNS_HEAD,
    date_text,
    event_text,
    facts_of,
    job_rows,
    run_rows,
)
from megads.text.units import duration

MOST_ROWS = 500  # of a table
WIDTH = 1000  # of a drawing, in its own units
COLOUR_OF = {part: COLOURS[number % len(COLOURS)] for number, part in enumerate(PARTS)}
STYLE = """<style>.report svg { width: 100%; height: auto; display: block; margin: 4px 0 10px; }
.report td:last-child { text-align: left; } .report li.bad { color: #b3261e; } .report dl { display: grid;
grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 8px 0; } .report dt { color: var(--pale); }
.report dd { margin: 0; } .report ul { margin: 4px 0; padding-left: 18px; }</style>"""


def report_page(campaigns: Sequence[Campaign], names: Sequence[str], drawing: Drawing | None, price: float) -> str:
    """Return the page.

    Args:
        drawing: of the runs' curves; None: none has a step yet.
        price: of an hour of one host; 0: not known.
    """
    parts = [STYLE, "<section class=report>"]
    if len(campaigns) > 1:
        parts.append(_table("Runs", RUNS_HEAD, run_rows(campaigns, names)))
    for campaign, name in zip(campaigns, names, strict=True):
        inside = _campaign(campaign, price)
        is_alone = len(campaigns) == 1
        parts.append(inside if is_alone else f"<details><summary>{html.escape(name)}</summary>{inside}</details>")
    top = "\n".join([*parts, "</section>"])
    title = f"report of {names[0]}" if len(names) == 1 else f"report of {len(names)} runs"
    return plots.page(drawing, top=top, title=title) if drawing else plots.bare_page(title, top)


def save_report(text: str, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(text, encoding="utf8")


def _campaign(campaign: Campaign, price: float) -> str:
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in facts_of(campaign, price)
    )
    parts = [f"<dl>{facts}</dl>"]
    if campaign.links:
        parts += [_shares(campaign), _timeline(campaign.links), _table("Starts", HEAD, job_rows(campaign))]
    if campaign.events:
        shown = campaign.events[-MOST_ROWS:]
        items = (
            f"<li{' class=bad' if each.is_bad else ''}>{html.escape(event_text(each).strip())}</li>" for each in shown
        )
        parts.append(f"<h2>Events</h2><ul>{''.join(items)}</ul>")
    return "\n".join(parts)


def _shares(campaign: Campaign) -> str:
    """Draw one bar: where the allocated host time went."""
    parts = host_seconds(campaign.links)
    whole, at, boxes = sum(parts.values()), 0.0, []
    for name, seconds in parts.items():
        width = WIDTH * seconds / whole
        tip = f"{name} {seconds / whole:.1%}, {seconds / 3600:.4g} host-hours"
        boxes.append(_box(at, 0.0, width, 26.0, COLOUR_OF[name], tip))
        at += width
    legend = " ".join(
        f'<span><i style="background:{COLOUR_OF[name]}"></i>{html.escape(name)} {seconds / whole:.1%}</span>'
        for name, seconds in parts.items()
    )
    return f"<h2>Allocated host time</h2>{_svg(boxes, 26.0)}<p>{legend}</p>"


def _timeline(links: Sequence[Link]) -> str:
    """Draw every start over time, as high as it had hosts, in the parts of its time."""
    first, last = links[0].attempt.started, max(link.ended for link in links)
    whole, most = max(last - first, 1e-9), max(link.hosts for link in links)
    boxes = []
    for link in links[:MOST_ROWS]:
        height = max(4.0, 60.0 * link.hosts / most)
        at = WIDTH * (link.attempt.started - first) / whole
        for name, seconds in link.seconds.items():
            if name == WAIT:
                continue  # a wait lies before its start
            width = WIDTH * seconds / whole
            tip = f"{date_text(link.attempt.started)}: {name} {duration(seconds)} on {link.hosts} hosts"
            boxes.append(_box(at, 60.0 - height, width, height, COLOUR_OF[name], tip))
            at += width
    note = f"{date_text(first)} to {date_text(last)}; the height is the number of hosts, at most {most}"
    return f"<h2>Starts over time</h2>{_svg(boxes, 60.0)}<p>{note}</p>"


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}" height="{height:.2f}"'
    return f'<rect {place} fill="{colour}"><title>{html.escape(tip)}</title></rect>'


def _svg(boxes: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" preserveAspectRatio="none">{"".join(boxes)}</svg>'


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "\n".join(
        f"<tr><th>{html.escape(row[0])}</th>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows[-MOST_ROWS:]
    )
    cut = f"<p>{len(rows) - MOST_ROWS} earlier rows are not shown.</p>" if len(rows) > MOST_ROWS else ""
    return f"<h2>{title}</h2>\n{cut}<div class=wide><table><tr>{top}</tr>\n{body}\n</table></div>"
