"""Curves as text: a number each, round ticks, no spike lost."""

import re

import numpy as np
import pytest

from megads.monitor.plots.sketch import chart_sketch, loss_sketch, read_losses, sketch
from tests.monitor.plots.made import rows_of, write_rows
from tests.monitor.plots.test_picture import ROWS, drawing_of


@pytest.mark.parametrize("rows", [ROWS, ROWS[1:-1], ROWS[1:2]], ids=["validated", "not validated", "one step"])
def test_the_loss_of_a_run_is_text_of_the_size_asked_for(tmp_path, rows):
    text = loss_sketch(read_losses(write_rows(tmp_path, rows)), width=60, height=12)
    assert len(text.splitlines()) == 12
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert re.search(r"^ *(7\.5|10)\u2524", text, re.MULTILINE)
    assert "iteration" in text


def test_a_line_has_no_gap_between_its_points():
    x = np.array([0.0, 10.0, 11.0])
    text = sketch([("", x, np.array([0.0, 1.0, 0.0]), False)], "step", 40, 14)
    rows = [line.partition("\u2524")[2] or line.partition("\u2502")[2] for line in text.splitlines()[:11]]
    assert all(row.strip() for row in rows)
    assert all(any(row[column : column + 1].strip() for row in rows) for column in range(30))


def test_several_curves_have_a_number_each_and_a_legend_at_the_top_right(tmp_path):
    rows = {
        "one": rows_of(40, every=99),
        "two": [{**row, "lm_loss": row["lm_loss"] + 4} for row in rows_of(40, every=99)],
    }
    drawing = drawing_of(tmp_path, rows, keys=["lm_loss"])
    _, legend, *plot = chart_sketch(drawing, drawing.charts[0], 60, 14).splitlines()
    assert legend == "1 one   2 two".rjust(60)
    assert len(plot) == 13
    ends = [line.rpartition(" ")[2] for line in plot if line.endswith((" 1", " 2"))]
    assert ends == ["2", "1"]  # above and below, nothing else is written in letters
    ticks = [line.split("\u2524")[0].strip() for line in plot if "\u2524" in line]
    assert ticks == ["12", "10", "8", "6", "4"] or ticks == ["12.5", "10.0", "7.5", "5.0", "2.5"]
