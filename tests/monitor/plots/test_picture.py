import subprocess
import sys

import matplotlib.image
import pytest

from megads.monitor.plots.drawing import draw
from megads.monitor.plots.picture import render, save_loss_plot, save_picture
from megads.monitor.plots.sketch import chart_sketch, read_losses
from megads.monitor.plots.source import read_run
from tests.monitor.plots.html.test_page import ink
from tests.monitor.plots.made import rows_of, step_row, write_rows

ROWS = [{"iteration": i, "lm_loss": 8.0 / i} for i in range(1, 40)]
ROWS.insert(0, {"iteration": 0, "valid_loss": 7.6, "valid_ppl": 2000.0})
ROWS.append({"iteration": 39, "valid_loss": 0.3, "lm_loss": None})


@pytest.mark.parametrize("rows", [ROWS, ROWS[1:-1], ROWS[1:2]], ids=["validated", "not validated", "one step"])
def test_the_loss_of_a_run_is_a_png(tmp_path, rows):
    losses = read_losses(write_rows(tmp_path, rows))
    save_loss_plot(losses, tmp_path / "loss.png", "tiny")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_spike_of_one_step_is_seen_in_the_picture_and_in_the_sketch(tmp_path):
    rows = rows_of(20_000, every=5000)
    rows[15_000]["lm_loss"] = 25.0
    drawing = draw([read_run(write_rows(tmp_path, rows), lambda key: True)], keys=["loss"], most=700)
    save_picture(drawing, tmp_path / "a.png")
    picture = matplotlib.image.imread(tmp_path / "a.png")
    height, width = picture.shape[:2]
    assert ink(picture, (width // 2, height // 3, width, height // 2)) > height // 6 - 5
    sketched = chart_sketch(drawing, drawing.charts[0], 70, 14).splitlines()
    spike = [line.partition("\u2524")[2] or line.partition("\u2502")[2] for line in sketched[3:8]]
    assert all(line[45:60].strip() for line in spike), sketched


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


def boxes(figure):
    """Return the rendered boxes of everything written, by text; legends, titles, ticks and values."""
    from matplotlib.text import Text

    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found]


def overlapping(figure):
    """Return the pairs of texts that lie over each other, and those outside the figure."""
    known, whole = boxes(figure), figure.bbox
    bad = [
        (one, two)
        for i, (one, a) in enumerate(known)
        for two, b in known[:i]
        if a.shrunk(0.98, 0.98).overlaps(b.shrunk(0.98, 0.98))
    ]
    return bad + [text for text, box in known if box.x0 < 0 or box.y0 < 0 or box.x1 > whole.x1 or box.y1 > whole.y1]


def eventful(steps):
    rows = rows_of(steps, every=steps // 5)
    for row in rows:
        row["rejected_iterations"] = int(row["iteration"] >= steps // 2)
        row["skipped_iterations"] = row["rejected_iterations"] + (row["iteration"] >= steps // 3)
        parts = ("data", "forward", "backward", "communication", "optimizer", "other")
        row.update({f"time/{part}_s": 0.008 for part in parts} if "lm_loss" in row else {})
    rows.append({"iteration": steps * 3 // 4, "rolled_back_to": steps // 2, "rollbacks": 1})
    rows.append({"iteration": steps * 4 // 5, "passed_over_iterations": steps // 10, "consumed_samples": 8})
    return rows


def drawing_of(tmp_path, rows, **options):
    for name, of_run in rows.items():
        write_rows(tmp_path / name, of_run)
    return draw([read_run(tmp_path / name, lambda key: True, name) for name in rows], **{"most": 300, **options})


@pytest.mark.parametrize(
    "rows",
    [
        {"a run with a name": eventful(200)},
        {"a": eventful(200), "b": rows_of(150), "another run with a long name": rows_of(90)},
        {"tiny": rows_of(2, every=1)},
        {"one": [step_row(1, 1)]},
        {f"run number {i}": rows_of(4, every=2) for i in range(14)},
    ],
    ids=["eventful", "three", "two steps", "one step", "many"],
)
def test_no_text_lies_over_another_or_outside(tmp_path, rows):
    assert overlapping(render(drawing_of(tmp_path, rows))) == []


def test_loss_and_validation_come_first_larger_and_with_their_last_values(tmp_path):
    rows = rows_of(200)
    figure = render(drawing_of(tmp_path, {"a": rows}))
    heights = [axes.get_position().height for axes in figure.axes]
    assert heights[0] == pytest.approx(heights[1])
    assert min(heights[:2]) > 1.3 * max(heights[2:])
    written = [text for text, _ in boxes(figure)]
    last = {key: [row[key] for row in rows if key in row][-1] for key in ("lm_loss", "valid_loss", "valid_loss/books")}
    assert {f"{value:.4f}" for value in last.values()} <= set(written)


def test_what_is_drawn_of_times_and_of_equal_curves(tmp_path):
    figure = render(drawing_of(tmp_path, {name: eventful(60) for name in "abc"}))
    by_title = {axes.texts[-1].get_text().split(" (")[0]: axes for axes in figure.axes}
    assert len(by_title["Step time"].patches) == 3 * 6  # a bar of six parts per run
    assert len(by_title["Step time"].lines) == 0
    widths = [line.get_linewidth() for line in by_title["Learning rate"].lines[:3]]
    assert widths[0] > widths[1] > widths[2]
    alone = render(drawing_of(tmp_path, {"a": eventful(60)}))
    areas = next(axes for axes in alone.axes if "Step time" in axes.texts[-1].get_text())
    assert len(areas.collections) == 6
    assert areas.get_ylim() == (0, 100)


def test_skipped_data_has_an_entry_and_a_rollback_one_mark(tmp_path):
    figure = render(drawing_of(tmp_path, {"a": eventful(200)}))
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["training", "validation", "step skipped", "step rejected", "rolled back", "data skipped"]


@pytest.mark.parametrize(("key", "low", "high"), [("batch", 0, 10.4), ("memory", 0, 1.3 * 41_234_567_890 / 2**30)])
def test_what_never_changes_gets_an_axis_from_zero_with_round_ticks(tmp_path, key, low, high):
    axes = render(drawing_of(tmp_path, {"a": rows_of(50)}, keys=[key])).axes[0]
    assert axes.get_ylim() == pytest.approx((low, high))
    assert [text.get_text() for text in axes.get_yticklabels()][:2] in (["0", "2"], ["0", "10"])


def test_the_picture_of_the_loss_has_no_empty_bands(tmp_path):
    import matplotlib.image

    save_loss_plot(read_losses(write_rows(tmp_path, ROWS)), tmp_path / "loss.png", "tiny")
    dark = (matplotlib.image.imread(tmp_path / "loss.png")[:, :, :3] < 0.9).any(axis=2)
    rows = dark.any(axis=1).nonzero()[0]
    assert rows[0] < 25
    assert len(dark) - rows[-1] < 35


def test_ranks_do_not_import_what_draws():
    code = (
        "import sys, megads.train.start_and_end\n"
        "print([name for name in ('matplotlib', 'megads.monitor.plots.picture') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
