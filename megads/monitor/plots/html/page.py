"""The charts of one or several runs as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from megads.monitor.plots.drawing import Chart, Curve, Drawing
from megads.monitor.plots.panels import AXES, label, place
from megads.monitor.plots.source import differing
from megads.monitor.plots.style import COLOURS
from megads.monitor.plots.summary import SUMMARY, summary_of

HERE = Path(__file__).parent
SCRIPTS = ("canvas.js", "parts.js", "page.js")
MOST_MARKS = 400  # of one kind, of one run


def save_page(drawing: Drawing, path: Path) -> None:
    """Write all charts into the HTML file ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page(drawing), encoding="utf8")


def page(drawing: Drawing) -> str:
    """Return the page."""
    names = [run.name for run in drawing.runs]
    title = names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"
    # No text of a run can end the script element or begin another.
    data = orjson.dumps(_data(drawing)).decode().replace("<", "\\u003c")
    parts = {
        "title": html.escape(title if len(title) < 100 else f"{len(names)} runs"),
        "style": (HERE / "page.css").read_text(encoding="utf8"),
        "tables": _tables(drawing),
        "data": data,
        "script": "\n".join((HERE / name).read_text(encoding="utf8") for name in SCRIPTS),
    }
    text = (HERE / "page.html").read_text(encoding="utf8")
    before, *rest = text.split("{{")
    return before + "".join(parts[name] + after for name, _, after in (each.partition("}}") for each in rest))


def _data(drawing: Drawing) -> dict[str, Any]:
    """Return what the script draws; arrays are float32, little-endian, in base64."""
    xs = _Positions(drawing)
    charts = [
        {
            "name": chart.panel.name,
            "title": chart.panel.title,
            "unit": chart.panel.unit,
            "log": chart.log,
            "large": chart.panel.large,
            "keys": [{"label": label(key), "colour": chart.key_colour(key)} for key in chart.keys],
            "curves": [_curve(drawing, chart, curve, xs) for curve in chart.curves],
            "bars": chart.bars,
        }
        for chart in drawing.charts
    ]
    return {
        "axis": drawing.axis,
        "axes": {name: AXES[name][0] for name in drawing.shared_axes},
        "smooth": drawing.smooth,
        "colours": COLOURS,
        "runs": [
            {"name": run.name, "marks": _marks(drawing, number), "bands": _bands(drawing, number)}
            for number, run in enumerate(drawing.runs)
        ],
        "charts": charts,
        "xs": xs.known,
    }


class _Positions:
    """Where points are on each axis; curves of the same rows share them."""

    def __init__(self, drawing: Drawing):
        self.drawing = drawing
        self.known: list[dict[str, str]] = []
        self.numbers: dict[tuple[int, bytes], int] = {}

    def number(self, run: int, iterations: np.ndarray) -> int:
        """Return the number of the entry in ``known`` for these iterations of a run."""
        name = (run, iterations.tobytes())
        if name not in self.numbers:
            self.numbers[name] = len(self.known)
            axes = self.drawing.axes[run]
            self.known.append({axis: _packed(place(axes[axis], iterations)) for axis in self.drawing.shared_axes})
        return self.numbers[name]


def _packed(values: np.ndarray) -> str:
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _curve(drawing: Drawing, chart: Chart, curve: Curve, xs: _Positions) -> dict[str, Any]:
    points = curve.points
    found: dict[str, Any] = {
        "run": curve.run,
        "key": chart.keys.index(curve.key),
        "colour": drawing.colour(chart, curve),
        "dash": drawing.dash(chart, curve),
        "behind": drawing.behind(chart, curve),
        "x": xs.number(curve.run, points.x),
        "y": _packed(points.y),
        "size": points.size,
        "dots": curve.sparse,
    }
    if curve.base is not None:
        found["base"] = _packed(curve.base)
    if points.low is not None and points.high is not None:
        found |= {"low": _packed(points.low), "high": _packed(points.high)}
    return found


def _marks(drawing: Drawing, run: int) -> dict[str, dict[str, Any]]:
    """Return for each kind of mark how many there are, and where, at most :data:`MOST_MARKS` of them."""
    found = {}
    for name, iterations in drawing.marks[run].items():
        some = iterations[:: -(-len(iterations) // MOST_MARKS)]
        at = {axis: place(drawing.axes[run][axis], some).tolist() for axis in drawing.shared_axes}
        found[name] = {"count": len(iterations), "at": at}
    return found


def _bands(drawing: Drawing, run: int) -> dict[str, list[list[float]]]:
    spans = np.array(drawing.passed_over[run][:MOST_MARKS]).reshape(-1, 2)
    return {axis: place(drawing.axes[run][axis], spans).tolist() for axis in drawing.shared_axes}


def _tables(drawing: Drawing) -> str:
    names = [run.name for run in drawing.runs]
    facts = [summary_of(run) for run in drawing.runs]
    rows = [(title, [each.get(title, "") for each in facts]) for title in SUMMARY]
    shown = [row for row in rows if any(row[1])]
    found = [_table("Runs" if len(names) > 1 else "Run", names, shown)]
    if len(names) > 1:
        differ = differing(drawing.runs)
        if differ:
            found.append(_table("Settings that differ", names, differ))
        elif all(run.settings for run in drawing.runs):
            found.append("<p>The settings of these runs are the same.</p>")
    return "\n".join(found)


def _table(title: str, names: list[str], rows: list[tuple[str, list[str]]]) -> str:
    head = "".join(
        f'<th><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{html.escape(name)}</th>'
        for number, name in enumerate(names)
    )
    body = "\n".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{html.escape(value)}</td>' for value in values)}</tr>"
        for name, values in rows
    )
    return f"<h2>{title}</h2>\n<div class=wide><table><tr><th></th>{head}</tr>\n{body}\n</table></div>"
