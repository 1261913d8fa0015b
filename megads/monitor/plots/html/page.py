"""The charts of one or several runs as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from megads.monitor.plots.drawing import Chart, Curve, Drawing
from megads.monitor.plots.panels import AXES, label
from megads.monitor.plots.source import Run, differing
from megads.monitor.plots.style import COLOURS
from megads.text.units import count

HERE = Path(__file__).parent
SCRIPTS = ("canvas.js", "page.js")
LAST = itemgetter(-1)
# Row of the summary -> key, which of its values, and its text.
SUMMARY: dict[str, tuple[str, Callable[[np.ndarray], float], Callable[[float], str]]] = {
    "tokens": ("consumed_tokens", LAST, count),
    "loss": ("lm_loss", LAST, "{:.4f}".format),
    "validation loss": ("valid_loss", LAST, "{:.4f}".format),
    "best validation loss": ("valid_loss", np.min, "{:.4f}".format),
    "tokens/s (median)": ("tokens_per_s", np.median, count),
    "MFU (median)": ("mfu", np.median, "{:.1%}".format),
    "MFU with half of causal attention (median)": ("mfu_causal", np.median, "{:.1%}".format),
}
MOST_MARKS = 400  # of one kind, of one run


def save_page(drawing: Drawing, path: Path) -> None:
    """Write all charts into the HTML file ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page(drawing), encoding="utf8")


def page(drawing: Drawing, *, top: str = "", title: str = "") -> str:
    """Return the page.

    Args:
        top: HTML above the charts.
        title: empty: the names of the runs.
    """
    names = [run.name for run in drawing.runs]
    title = title or names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"
    # No text of a run can end the script element or begin another.
    data = orjson.dumps(_data(drawing)).decode().replace("<", "\\u003c")
    parts = {
        "title": html.escape(title if len(title) < 100 else f"{len(names)} runs"),
        "style": (HERE / "page.css").read_text(encoding="utf8"),
        "top": top,
        "tables": _tables(drawing),
        "data": data,
        "script": "\n".join((HERE / name).read_text(encoding="utf8") for name in SCRIPTS),
    }
    return fill((HERE / "page.html").read_text(encoding="utf8"), parts)


def bare_page(title: str, top: str) -> str:
    """Return a page without charts."""
    style = (HERE / "page.css").read_text(encoding="utf8")
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    head = f'<meta charset="utf-8">{policy}<title>{html.escape(title)}</title><style>{style}</style>'
    body = f"<header><h1>{html.escape(title)}</h1></header>{top}"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>{body}</body>\n</html>\n'


def fill(template: str, parts: dict[str, str]) -> str:
    """Return a template whose ``{{name}}`` are replaced by the parts of these names."""
    before, *rest = template.split("{{")
    return before + "".join(parts[name] + after for name, _, after in (each.partition("}}") for each in rest))


def _data(drawing: Drawing) -> dict[str, Any]:
    """Return what the script draws; arrays are float32, little-endian, in base64."""
    xs: dict[tuple[int, bytes], dict[str, str]] = {}  # where points are; curves of the same rows share them
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
        "xs": list(xs.values()),
    }


def _packed(values: np.ndarray) -> str:
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _curve(drawing: Drawing, chart: Chart, curve: Curve, xs: dict[tuple[int, bytes], dict[str, str]]) -> dict[str, Any]:
    points, rows = curve.points, (curve.run, curve.points.x.tobytes())
    if rows not in xs:
        xs[rows] = {axis: _packed(each) for axis, each in drawing.on_axes(curve.run, points.x).items()}
    found: dict[str, Any] = {
        "run": curve.run,
        "key": chart.keys.index(curve.key),
        "colour": drawing.colour(chart, curve),
        "dash": drawing.dash(chart, curve),
        "behind": drawing.behind(chart, curve),
        "x": list(xs).index(rows),
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
        at = {axis: places.tolist() for axis, places in drawing.on_axes(run, some).items()}
        found[name] = {"count": len(iterations), "at": at}
    return found


def _bands(drawing: Drawing, run: int) -> dict[str, list[list[float]]]:
    spans = np.array(drawing.skipped_ranges[run][:MOST_MARKS]).reshape(-1, 2)
    return {axis: places.tolist() for axis, places in drawing.on_axes(run, spans).items()}


def _tables(drawing: Drawing) -> str:
    names = [run.name for run in drawing.runs]
    facts = [_summary_of(run) for run in drawing.runs]
    rows = [(title, [each.get(title, "") for each in facts]) for title in ("step", *SUMMARY)]
    table = _table("Runs" if len(names) > 1 else "Run", names, [row for row in rows if any(row[1])])
    if len(names) > 1 and (differ := differing(drawing.runs)):
        return "\n".join([table, _table("Settings that differ", names, differ)])
    are_same = len(names) > 1 and all(run.settings for run in drawing.runs)
    return table + "\n<p>The settings of these runs are the same.</p>" * are_same


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


def _summary_of(run: Run) -> dict[str, str]:
    """Return the last loss, speeds and so on as text."""
    found = {key: column.numbers() for key, column in run.columns.items() if len(column.numbers().x)}
    steps = max((float(column.x[-1]) for column in found.values()), default=0.0)
    total = run.settings.get("train.train_iters")
    facts = {"step": f"{steps:.0f}" + (f" of {total}" if isinstance(total, int) and total else "")}
    shown = {name: row for name, row in SUMMARY.items() if row[0] in found}
    return facts | {name: text(float(value_of(found[key].y))) for name, (key, value_of, text) in shown.items()}
