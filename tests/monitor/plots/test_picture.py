import subprocess
import sys

import matplotlib.image
import pytest

from megads.monitor.plots.drawing import draw
from megads.monitor.plots.loss import read_losses, save_loss_plot
from megads.monitor.plots.picture import save_picture
from megads.monitor.plots.sketch import chart_sketch, loss_sketch
from megads.monitor.plots.source import read_run
from tests.monitor.plots.made import rows_of, step_row, write_rows
from tests.monitor.plots.test_page import ink

ROWS = [{"iteration": i, "lm_loss": 8.0 / i} for i in range(1, 40)]
ROWS.insert(0, {"iteration": 0, "valid_loss": 7.6, "valid_ppl": 2000.0})
ROWS.append({"iteration": 39, "valid_loss": 0.3, "lm_loss": None})


@pytest.mark.parametrize("rows", [ROWS, ROWS[1:-1], ROWS[1:2]], ids=["validated", "not validated", "one step"])
def test_the_loss_of_a_run_is_a_png_and_a_sketch(tmp_path, rows):
    losses = read_losses(write_rows(tmp_path, rows))
    save_loss_plot(losses, tmp_path / "loss.png", "tiny")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    text = loss_sketch(losses, width=60, height=12)
    assert len(text.splitlines()) == 12
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "8.0" in text
    assert "iteration" in text


def test_a_spike_of_one_step_is_seen_in_the_picture_and_in_the_sketch(tmp_path):
    rows = rows_of(20_000, every=5000)
    rows[15_000]["lm_loss"] = 25.0
    drawing = draw([read_run(write_rows(tmp_path, rows), lambda key: True)], keys=["loss"], most=700)
    save_picture(drawing, tmp_path / "a.png")
    picture = matplotlib.image.imread(tmp_path / "a.png")
    height, width = picture.shape[:2]
    assert ink(picture, (width // 2, height // 3, width, height // 2)) > height // 6 - 5
    sketched = chart_sketch(drawing, drawing.charts[0], 70, 14).splitlines()
    assert sketched[6].rstrip("\u2502 ").rpartition("\u2502")[2].strip()


def test_all_charts_of_several_runs_are_drawn(tmp_path):
    hole = [row for row in rows_of(300) if not 100 < row["iteration"] < 200]
    rows = {"a": rows_of(5000, every=500), "b": hole, "c": [step_row(1, 1, lm_loss=None)]}
    for name, of_run in rows.items():
        write_rows(tmp_path / name, of_run)
    drawing = draw([read_run(tmp_path / name, lambda key: True, name) for name in rows], smooth=20, most=300)
    save_picture(drawing, tmp_path / "a.png")
    assert matplotlib.image.imread(tmp_path / "a.png").shape[1] > 1400
    for chart in drawing.charts:
        lines = chart_sketch(drawing, chart, 60).splitlines()
        assert max(map(len, lines)) <= 60


def test_ranks_do_not_import_what_draws():
    code = (
        "import sys, megads.train.report\n"
        "print([name for name in ('matplotlib', 'plotext', 'megads.monitor.plots.picture') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
